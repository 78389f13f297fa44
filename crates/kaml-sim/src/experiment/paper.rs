//! What the papers report, each value with its figure. Everything else in a result is measured.
//!
//! Lives here:       the values.
//! Lives elsewhere:  the claims that compare them (`micro`, `logs`, `muninn`).
//! Implements:       paper:KAML V, paper:Muninn 6.

/// A value that a paper reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PaperValue {
    /// The paper and its figure or section.
    pub figure: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// As the paper writes it.
    pub says: &'static str,
    /// The same as numbers: lowest and highest.
    pub range: (f64, f64),
}

macro_rules! values {
    ($($name:ident: $figure:literal, $what:literal, $says:literal, $low:literal, $high:literal;)*) => {
        $(pub(crate) const $name: PaperValue =
            PaperValue { figure: $figure, what: $what, says: $says, range: ($low, $high) };)*
        impl PaperValue {
            /// All values that are compared.
            pub const ALL: &[PaperValue] = &[$($name),*];
        }
    };
}

values! {
    GET_LOAD_1: "KAML, Figure 5", "Get / read bandwidth, load 0.1", "up to 1.2", 1.0, 1.2;
    GET_LOAD_4: "KAML, Figure 5", "Get / read bandwidth, load 0.4", "1.0", 1.0, 1.0;
    GET_LOAD_7: "KAML, Figure 5", "Get / read bandwidth, load 0.7", "below 1", 1.0, 1.0;
    UPDATE_SMALL: "KAML, Figure 5", "Update / write bandwidth below 4 KiB", "6.7 to 7.9", 6.7, 7.9;
    UPDATE_UNIT: "KAML, Figure 5", "Update / write bandwidth at 4 KiB", "slightly below 1", 1.0, 1.0;
    INSERT_SMALL: "KAML, Figure 5", "Insert / write bandwidth below 4 KiB", "1.0 to 1.1", 1.0, 1.1;
    INSERT_UNIT: "KAML, Figure 5", "Insert / write bandwidth at 4 KiB", "below 1", 1.0, 1.0;
    GET_LATENCY: "KAML, Figure 6", "Get / read latency", "1.0", 1.0, 1.0;
    UPDATE_LATENCY: "KAML, Figure 6", "Update / write latency below 4 KiB", "0.2", 0.2, 0.2;
    INSERT_LATENCY_SMALL: "KAML, Figure 6", "Insert / write latency below 4 KiB", "0.63 to 0.75", 0.63, 0.75;
    INSERT_LATENCY_UNIT: "KAML, Figure 6", "Insert / write latency at 4 KiB", "2.9", 2.9, 2.9;
    BATCH_UPDATE: "KAML, Figure 7", "Update bandwidth, 4 records / 1", "1.2 to 1.3", 1.2, 1.3;
    BATCH_FILL: "KAML, Figure 7", "time to fill to load 0.7, 4 records / 1", "0.6", 0.6, 0.6;
    LOGS: "KAML, Figure 8", "Update bandwidth, 64 logs / 16", "5.8", 5.8, 5.8;
    TPCB: "KAML, Figure 9", "TPC-B, KAML / Shore-MT with record locks", "up to 4.0", 4.0, 4.0;
    NEW_ORDER: "KAML, Figure 9", "NewOrder, KAML / Shore-MT with record locks", "1.1", 1.1, 1.1;
    PAYMENT: "KAML, Figure 9", "Payment, KAML / Shore-MT with record locks", "2.0", 2.0, 2.0;
    COARSE_RECORDS: "KAML, V.D", "KAML, throughput lost with 16 records a lock, %", "up to 47", 47.0, 47.0;
    COARSE_PAGES: "KAML, V.D", "Shore-MT, throughput lost with page locks, %", "up to 80", 80.0, 80.0;
    YCSB: "KAML, Figure 10", "YCSB, KAML / Shore-MT", "1.1 to 3.0", 1.1, 3.0;
    YCSB_MEAN: "KAML, Figure 10", "YCSB, KAML / Shore-MT, mean", "2.3", 2.3, 2.3;
    UTILISATION: "Muninn, Figure 7", "S8/7: utilisation of segments, %", "92 to 94", 92.0, 94.1;
    UTILISATION_FEW: "Muninn, 6.4", "pareto without overwrites: utilisation, %", "65", 65.2, 65.2;
    BYTES: "Muninn, 6.3 and 6.4", "bytes of memory a key", "2.14 to 2.5", 2.14, 2.5;
    BYTES_FEW: "Muninn, 6.4", "pareto without overwrites: bytes a key", "3.1", 3.1, 3.1;
    READS_OLDEST: "Muninn, Figures 8 and 9", "page reads of a lookup, oldest table", "below 2", 2.0, 2.0;
    READS_AVERAGE: "Muninn, Figure 9", "page reads of a lookup, average", "1.5", 1.5, 1.5;
    WRITES: "Muninn, Figure 9", "page writes of an insert", "0.26", 0.26, 0.26;
    RATE_NEW: "Muninn, 6.3", "thousand lookups a second, newest tables", "69", 69.0, 69.0;
    RATE_AVERAGE: "Muninn, 6.3", "thousand lookups a second, average", "34", 34.0, 34.0;
    RATE_OLDEST: "Muninn, 6.3", "thousand lookups a second, oldest table", "20", 20.0, 20.0;
}

/// What no paper reports.
pub(crate) const NONE: PaperValue = PaperValue { figure: "", what: "", says: "", range: (0.0, 0.0) };

#[cfg(test)]
mod tests {
    use super::PaperValue;

    /// Goal:   each value has its figure, and numbers that agree with the words.
    /// Method: all of them; the digits of the words that are numbers are within the range.
    #[test]
    fn values_agree_with_their_words() {
        for value in PaperValue::ALL {
            assert!(value.figure.starts_with("KAML") || value.figure.starts_with("Muninn"), "{value:?}");
            assert!(value.range.0 <= value.range.1 && !value.what.is_empty(), "{value:?}");
            if let Some(number) = value.says.split(' ').find_map(|word| word.parse::<f64>().ok()) {
                let (low, high) = value.range;
                assert!(number >= low * 0.99 && number <= high * 1.01, "{value:?}");
            }
        }
    }
}
