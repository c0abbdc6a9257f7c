//! Items and chunks of a slice, each given to whatever thread is free.

use super::Threads;
use super::divide::PARTS_ON_STACK;
use crate::parallel::division::{self, share};

impl Threads {
    /// Runs `run` on each item, on whatever threads are free: for many matrices that are too small to be divided.
    /// Kernels inside may be given these threads too; they will find them busy and work alone.
    ///
    /// # Errors
    /// Of several errors, that of the first item.
    pub fn each<T, E>(&self, items: &mut [T], run: impl Fn(&mut T) -> Result<(), E> + Sync) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        fn split<T>(items: &mut [T], left: usize, all: usize) -> (&mut [T], &mut [T]) {
            let mid = share(items.len(), left, all);
            items.split_at_mut(mid)
        }
        let parts = if self.count <= 1 { 1 } else { items.len() };
        let places = division::places_of_unequal(parts, self.count);
        let run = |items: &mut [T]| items.iter_mut().try_for_each(&run);
        self.divide_at(parts, places, items, &split::<T>, &run)
    }

    /// As [`each`](Threads::each) with the index of each item, for many small items: neighbours go to a thread together, so
    /// nothing is allocated and nothing locked for an item.
    ///
    /// # Errors
    /// Of several errors, that of the first item. Items that were to be run behind one that failed, by the same thread, may not
    /// be run.
    pub fn indexed<T, E>(
        &self,
        items: &mut [T],
        run: impl Fn(usize, &mut T) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        self.chunks(items, 1, |index, items| items.iter_mut().try_for_each(|item| run(index, item)))
    }

    /// Runs `run` on chunks of `size` items (the last may be shorter; 0 counts as 1) with the number of each, chunk `i` from
    /// item `i * size` on: the rows of a matrix, say. Neighbours go to a thread together, so nothing is allocated and nothing
    /// locked for a chunk; more than 64 threads are an allocation for the whole.
    ///
    /// # Errors
    /// Of several errors, that of the first chunk. Chunks that were to be run behind one that failed, by the same thread, may
    /// not be run.
    pub fn chunks<T, E>(
        &self,
        items: &mut [T],
        size: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        let chunks = items.len().div_ceil(size.max(1));
        // As many as need no memory, but one for each thread.
        let most = self.most_parts().min(PARTS_ON_STACK.max(self.count));
        let parts = most.min(chunks).max(1);
        self.chunks_in(parts, division::places_of_unequal(parts, self.count), items, size, run)
    }

    /// As [`chunks`](Threads::chunks), for rows of `k` values that are converted to or from f32, of `size` items each: little work
    /// is not divided.
    pub(crate) fn converted_rows<T, E>(
        &self,
        items: &mut [T],
        size: usize,
        k: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        self.at_most(None).converted_rows(items, size, k, run)
    }

    pub(super) fn chunks_in<T, E>(
        &self,
        parts: usize,
        places: usize,
        items: &mut [T],
        size: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        let size = size.max(1);
        let split = |(first, items): (usize, _), left, all| {
            let items: &mut [T] = items;
            let chunks = share(items.len().div_ceil(size), left, all);
            // Only the last chunk is shorter, and it is not cut off the others unless they end before it.
            let mid = chunks.saturating_mul(size).min(items.len());
            let (before, behind) = items.split_at_mut(mid);
            ((first, before), (first + chunks, behind))
        };
        let run = |(first, items): (usize, &mut [T])| {
            items.chunks_mut(size).enumerate().try_for_each(|(index, chunk)| run(first + index, chunk))
        };
        self.divide_at(parts, places, (0, items), &split, &run)
    }
}
