//! Memory for as much as outside input says: where there is none, that is an error.

use crate::error::Error;

/// A vector that has room for so many values.
pub fn room<T>(count: usize) -> Result<Vec<T>, Error> {
    let required = count.saturating_mul(size_of::<T>());
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { required })?;
    Ok(values)
}

/// A vector of so many zeros.
pub fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>, Error> {
    filled(T::default(), count)
}

/// A vector of so many times `value`.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, Error> {
    let mut values = room(count)?;
    values.resize(count, value);
    Ok(values)
}
