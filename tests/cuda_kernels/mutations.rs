//! Generated text with one mistake in it.
