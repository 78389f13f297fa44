//! Which transaction a terminal requests next, and when.
//!
//! Lives here:       the mix, keying times and thinking times.
//! Implements:       clauses 5.2.3 (minimum of each transaction), 5.2.4 (decks of cards) and 5.2.5 (times).

use super::{Mix, Settings};
use crate::keys::Rng;
use std::time::Duration;

/// The transactions, by their place among [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

pub(super) const KINDS: [&str; 5] = ["new-order", "payment", "order-status", "delivery", "stock-level"];

/// A deck: 43.5 % each of NewOrders and Payments, 4.3 % of each of the others. The benchmark demands 43 % and 4 %.
const DECK: [(Kind, usize); 5] =
    [(Kind::NewOrder, 10), (Kind::Payment, 10), (Kind::OrderStatus, 1), (Kind::Delivery, 1), (Kind::StockLevel, 1)];
/// Seconds that entering the input takes, and the mean seconds until the next transaction is chosen.
const KEYING_S: [f64; 5] = [18.0, 3.0, 2.0, 2.0, 2.0];
const THINKING_S: [f64; 5] = [12.0, 12.0, 10.0, 5.0, 5.0];
/// No thinking time is more than so many times its mean.
const THINKING_MAX: f64 = 10.0;

/// One terminal.
#[derive(Default)]
pub(super) struct Terminal {
    /// Cards that are left.
    deck: Vec<Kind>,
    /// Chosen already, because keying times depend on it.
    chosen: Option<Kind>,
    last: Option<Kind>,
}

impl Terminal {
    /// The next transaction.
    pub(super) fn next(&mut self, settings: &Settings, rng: &mut Rng) -> Kind {
        let kind = self.chosen.take().unwrap_or_else(|| self.draw(settings, rng));
        self.last = Some(kind);
        kind
    }

    /// Thinking about the last transaction, and keying in the next.
    pub(super) fn pause(&mut self, settings: &Settings, rng: &mut Rng) -> Duration {
        if settings.think == 0.0 {
            return Duration::ZERO;
        }
        let thinking = self.last.map_or(0.0, |last| {
            let mean = THINKING_S[last as usize];
            (-(1.0 - rng.unit()).ln() * mean).min(THINKING_MAX * mean)
        });
        let next = self.draw(settings, rng);
        self.chosen = Some(next);
        Duration::from_secs_f64((thinking + KEYING_S[next as usize]) * settings.think)
    }

    fn draw(&mut self, settings: &Settings, rng: &mut Rng) -> Kind {
        if let Mix::Paper(share) = settings.mix {
            return if rng.unit() < share { Kind::NewOrder } else { Kind::Payment };
        }
        if self.deck.is_empty() {
            self.deck.extend(DECK.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count)));
        }
        let at = rng.below(self.deck.len() as u64) as usize;
        self.deck.swap_remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a deck has the minimum of each transaction; the paper's mix has two kinds.
    /// Method: count the cards of a hundred decks, in any order.
    #[test]
    fn decks_have_the_minimum() {
        let settings = Settings { mix: Mix::Full, ..Settings::new(1) };
        let (mut terminal, mut rng) = (Terminal::default(), Rng::new(3));
        let mut counts = [0; 5];
        let kinds: Vec<Kind> = (0..2300).map(|_| terminal.next(&settings, &mut rng)).collect();
        kinds.iter().for_each(|kind| counts[*kind as usize] += 1);
        assert_eq!(counts, [1000, 1000, 100, 100, 100]);
        assert_ne!(kinds[..23], kinds[23..46]);
        let paper = Settings { mix: Mix::Paper(0.25), ..settings };
        let count = (0..4000).filter(|_| Terminal::default().next(&paper, &mut rng) == Kind::NewOrder).count();
        assert!((850..1150).contains(&count), "{count}");
    }

    /// Goal:   pauses have the specified mean and their bounds, and belong to the transaction that follows.
    /// Method: many pauses of a terminal, of full length and a thousandth of it; none without think time.
    #[test]
    fn pauses_are_as_specified() {
        let (mut terminal, mut rng) = (Terminal::default(), Rng::new(5));
        let none = Settings::new(1);
        assert_eq!(terminal.pause(&none, &mut rng), Duration::ZERO);
        for (think, count) in [(1.0, 23_000), (0.001, 2_300)] {
            let settings = Settings { mix: Mix::Full, think, ..none.clone() };
            let mut sum = 0.0;
            for _ in 0..count {
                let pause = terminal.pause(&settings, &mut rng).as_secs_f64() / think;
                let kind = terminal.next(&settings, &mut rng);
                assert!(pause >= KEYING_S[kind as usize] - 1e-6 && pause <= 18.0 + 120.0, "{kind:?}: {pause}");
                sum += pause;
            }
            // (10 * (18 + 12) + 10 * (3 + 12) + 2 + 10 + 2 + 5 + 2 + 5) / 23
            let (mean, expected) = (sum / f64::from(count), 476.0 / 23.0);
            assert!((mean / expected - 1.0).abs() < 0.05, "{mean} of {expected}");
        }
    }
}
