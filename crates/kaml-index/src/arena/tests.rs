use proptest::prelude::*;

use super::*;

proptest! {
    /// Goal:   vectors find what single words do.
    /// Method: lines of words that are often alike in their low halves, for either choice.
    #[test]
    fn vectors_compare_as_words(words in prop::array::uniform16((0u64..4, any::<u32>())), low in 0u32..2) {
        let line = |at: usize| Line::of(&std::array::from_fn(|i| words[at + i].0 | u64::from(words[at + i].1) << 32));
        let (first, second, low) = (line(0), line(8), low * 2);
        prop_assert_eq!(alike(&first, &second, low), alike_by_words(&first, &second, low));
    }
}

/// Goal:   the thread that has memory ready ends with its writer, also while a reader keeps the memory.
/// Method: pages are taken until it is started; it alone holds the other end of the signal.
#[test]
fn preparing_ends_with_the_writer() {
    let arena = Arc::new(Arena::reserve(8 << 20).unwrap());
    let mut pages = Pages::new(PAGE_LINES);
    while pages.preparer.is_none() {
        pages.take(&arena);
    }
    let signal = Arc::downgrade(&pages.preparer.as_ref().expect("just started").signal);
    while arena.ready.load(Acquire) < READY_FROM_LINES {
        thread::yield_now();
    }
    drop(pages);
    while signal.strong_count() > 0 {
        thread::yield_now();
    }
    assert_eq!(arena.line(0).load(), [0; 8], "the memory still exists");
}

/// Goal:   what is ready is where pages are taken next, never far ahead, and is counted.
/// Method: take pages one by one; after each, do at once what the thread would do.
#[test]
fn ready_memory_is_just_ahead() {
    let arena = Arc::new(Arena::reserve(128 << 20).unwrap());
    let mut pages = Pages::new(PAGE_LINES);
    pages.preparer = Some(Preparer { thread: None, signal: Arc::default() });
    while u64::from(pages.frontier) * 4096 < 64 << 20 {
        pages.take(&arena);
        arena.catch_up();
        let (frontier, ready) = (arena.frontier.load(Relaxed), arena.ready.load(Relaxed));
        assert!(frontier < READY_FROM_LINES || ready > frontier, "{ready} lines are ready of {frontier}");
        let ahead_max = if frontier + LEAD_LINES < SMALL_LINES { SMALL_STEP_LINES } else { HUGE_LINES };
        assert!(ready <= frontier + ahead_max + LEAD_LINES, "{ready} lines are ready of {frontier}");
        assert!(pages.taken_bytes(&arena) >= u64::from(ready) * LINE_BYTES as u64);
    }
}

/// Goal:   a caller that takes pages never touches a huge page that is being made ready, and no two pages are one.
/// Method: the thread sleeps forever and its work is done occasionally; small pages are taken at once, what should be
///         huge comes from the end until it is ready. Then an index is loaded, which waits for nobody.
#[test]
fn late_pages_come_from_the_end() {
    let arena = Arc::new(Arena::reserve(128 << 20).unwrap());
    let mut pages = Pages::new(PAGE_LINES + 3);
    let [page_count, in_front_max] = [arena.line_count, SMALL_LINES].map(|lines| lines / pages.lines);
    pages.preparer = Some(Preparer { thread: Some(thread::current()), signal: Arc::default() });
    let small: Vec<_> = (0..in_front_max).map(|_| pages.take(&arena)).collect();
    assert!(small.iter().copied().eq(0..in_front_max), "small pages are as good as what is ready");
    let run = pages.take_lines(&arena, 3 * pages.lines) / pages.lines;
    assert_eq!([run, pages.take(&arena)], [page_count - 3, page_count - 4]);
    let before = pages.taken_bytes(&arena);
    arena.catch_up();
    assert_eq!(pages.take(&arena), in_front_max);
    assert!(pages.taken_bytes(&arena) > before);
    let is_ready = |page: u32| (page + 1) * pages.lines <= arena.ready.load(Acquire);
    assert!(is_ready(in_front_max));

    let arena = Arc::new(Arena::reserve(128 << 20).unwrap());
    let mut pages = Pages::new(PAGE_LINES);
    let count = in_front_max * 2;
    let loaded = pages.take_all(&arena, |pages| (0..count).map(|_| pages.take(&arena)).collect::<Vec<_>>());
    assert!(loaded.into_iter().eq(0..count) && pages.preparer.is_none());
    assert_eq!(arena.ready.load(Acquire), (count * PAGE_LINES).next_multiple_of(HUGE_LINES));
}
