//! A progress bar on standard error, where that is a terminal.

use super::progress;
use gristmill::text::Printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Shows which tensor is at work.
pub fn tensor(bar: &ProgressBar, name: &str) {
    bar.set_message(Printable(name).to_string());
}

/// A bar of `length` steps; invisible where standard error is not a terminal.
pub fn bar(length: u64) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    // The template is a constant; were it refused, the default style would do.
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// Shows what is at work.
pub(super) fn step(bar: &ProgressBar, tensor: &str) {
    progress::tensor(bar, tensor);
    bar.inc(1);
}
