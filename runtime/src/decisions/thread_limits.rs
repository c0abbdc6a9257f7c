//! Fewer threads than there are, where a tuning measured that they are faster.

use crate::request::Shape;
use crate::tuning::ShapeClass;
use std::sync::Arc;

/// How many threads of those that there are work on a job, by its class of shapes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadLimits(Option<Arc<[u16; ShapeClass::COUNT]>>);

impl ThreadLimits {
    /// What was found of each class; all threads of classes of which nothing was.
    pub(crate) fn new(found: impl IntoIterator<Item = (ShapeClass, usize)>) -> ThreadLimits {
        let mut limits = [u16::MAX; ShapeClass::COUNT];
        let mut any = false;
        for (class, threads) in found {
            limits[class.index()] = u16::try_from(threads.max(1)).unwrap_or(u16::MAX);
            any = true;
        }
        ThreadLimits(any.then(|| Arc::new(limits)))
    }

    /// The most threads for a shape; `None`: all that there are.
    #[inline]
    pub(crate) fn of(&self, shape: Shape) -> Option<usize> {
        let limit = self.0.as_ref()?[ShapeClass::of(shape).index()];
        (limit < u16::MAX).then_some(usize::from(limit))
    }
}
