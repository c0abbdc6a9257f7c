//! Rows by key that are only ever added to.

use std::sync::OnceLock;

/// Rows in the order in which they came. Finding one locks nothing; where two threads make the same one, one of them waits for the other.
#[derive(Debug)]
pub(crate) struct Rows<K, V>(OnceLock<Box<Row<K, V>>>);

#[derive(Debug)]
struct Row<K, V> {
    key: K,
    value: V,
    next: Rows<K, V>,
}

impl<K, V> Default for Rows<K, V> {
    fn default() -> Rows<K, V> {
        Rows(OnceLock::new())
    }
}

impl<K: Copy + PartialEq, V: Default> Rows<K, V> {
    /// The row of a key, new where there was none.
    pub(crate) fn of(&self, key: K) -> &V {
        let mut rows = self;
        loop {
            let new = || Box::new(Row { key, value: V::default(), next: Rows::default() });
            let row = rows.0.get_or_init(new);
            if row.key == key {
                return &row.value;
            }
            rows = &row.next;
        }
    }

    /// All rows, by key.
    pub(crate) fn sorted(&self) -> Vec<(K, &V)>
    where
        K: Ord,
    {
        let mut all: Vec<(K, &V)> = std::iter::successors(self.0.get(), |row| row.next.0.get())
            .map(|row| (row.key, &row.value))
            .collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::Rows;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn threads_that_make_the_same_rows_share_them() {
        let rows: Rows<u64, AtomicU64> = Rows::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let rows = &rows;
                scope.spawn(move || {
                    for at in 0..1000u64 {
                        rows.of((at * 7 + thread) % 10).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let counts: Vec<(u64, u64)> =
            rows.sorted().iter().map(|(key, count)| (*key, count.load(Ordering::Relaxed))).collect();
        assert_eq!(counts, (0..10).map(|key| (key, 400)).collect::<Vec<_>>());
    }
}
