//! Text: scalar expressions as Rust ([`rust`]) and as CUDA C++ ([`cuda`]); and emitted Rust, printed as a person would have
//! written it: formatted, with its comments, without operations that change nothing.
//!
//! The formatter works on syntax, which has no comments. So comments become attributes of what follows them, and comments
//! again when all is printed.

pub(crate) mod cuda;
pub(crate) mod rust;
mod scalar;
pub(crate) mod simd;

use crate::Error;
use proc_macro2::{Group, TokenStream, TokenTree};
use std::fmt::Write as _;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, Lit, LocalInit};

/// What the text of an attribute begins with that is a comment. No doc comment begins so.
const COMMENT: &str = "~";

/// The name of the runtime in emitted text.
const RUNTIME: &str = "gristmill_runtime";

/// Formatted Rust of emitted text, in which the runtime is found by the path `runtime`.
pub(crate) fn formatted(text: &str, runtime: &str) -> Result<String, Error> {
    let attributed = with_attributes(text);
    let wrong = |error: syn::Error| {
        let line = error.span().start().line;
        let near = attributed.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        Error::Emitted { message: format!("{error} near `{near}`") }
    };
    let tokens: TokenStream = syn::parse_str(&attributed).map_err(wrong)?;
    let path = runtime.parse::<TokenStream>().map_err(|error| wrong(error.into()))?;
    let mut file = syn::parse2(found_by(tokens, &path)).map_err(wrong)?;
    Simplify.visit_file_mut(&mut file);
    Ok(with_comments(&prettyplease::unparse(&file)))
}

/// The tokens with `path` for the name of the runtime.
fn found_by(tokens: TokenStream, path: &TokenStream) -> TokenStream {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(name) if name == RUNTIME => path.clone(),
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), found_by(group.stream(), path));
                inner.set_span(group.span());
                TokenTree::Group(inner).into()
            }
            other => other.into(),
        })
        .collect()
}

/// Comments that have a line of their own, as attributes. Documentation stays what it is.
fn with_attributes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        match line.trim_start().strip_prefix("//") {
            Some(comment) if !comment.starts_with(['/', '!']) => {
                let _ = writeln!(out, "#[doc = {:?}]", format!("{COMMENT}{comment}"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// The reverse of [`with_attributes`], after formatting.
fn with_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        match code.strip_prefix("///").and_then(|doc| doc.strip_prefix(COMMENT)) {
            Some(comment) => {
                let _ = writeln!(out, "{indent}//{comment}");
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// Leaves out what changes no value: `at * 1`, `0 * tile`, `0 + i`, `byte >> 0`, `x / 1.0`, and parentheses around what needs none.
///
/// Nothing else of floats: `x * 1.0` and `x + 0.0` are not the same for every NaN and for minus zero.
struct Simplify;

impl VisitMut for Simplify {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        if let Some(kept) = kept(expr) {
            *expr = kept;
        }
        match expr {
            Expr::Assign(assign) => bare(&mut assign.right),
            Expr::Binary(binary) if is_assignment(&binary.op) => bare(&mut binary.right),
            Expr::Call(call) => call.args.iter_mut().for_each(bare),
            Expr::MethodCall(call) => call.args.iter_mut().for_each(bare),
            _ => {}
        }
    }

    fn visit_local_init_mut(&mut self, init: &mut LocalInit) {
        visit_mut::visit_local_init_mut(self, init);
        bare(&mut init.expr);
    }
}

/// Takes the parentheses off that are around a whole expression.
fn bare(expr: &mut Expr) {
    while let Expr::Paren(paren) = expr
        && paren.attrs.is_empty()
    {
        *expr = (*paren.expr).clone();
    }
}

fn is_assignment(op: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        op,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// What an expression is without an operation that changes nothing, if it is one.
fn kept(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Binary(binary) => {
            let (left, right) = (&*binary.left, &*binary.right);
            let is = |side: &Expr, number: u64| integer(side) == Some(number);
            match binary.op {
                BinOp::Mul(_) if is(right, 1) => Some(left.clone()),
                BinOp::Mul(_) if is(left, 1) => Some(right.clone()),
                BinOp::Mul(_) if is(left, 0) => Some(left.clone()),
                BinOp::Add(_) if is(left, 0) => Some(right.clone()),
                BinOp::Add(_) | BinOp::Sub(_) | BinOp::Shl(_) | BinOp::Shr(_) if is(right, 0) => {
                    Some(left.clone())
                }
                BinOp::Div(_) if is(right, 1) || is_one(right) => Some(left.clone()),
                _ => None,
            }
        }
        Expr::Paren(paren) if paren.attrs.is_empty() && is_whole(&paren.expr) => Some((*paren.expr).clone()),
        _ => None,
    }
}

fn integer(expr: &Expr) -> Option<u64> {
    let Expr::Lit(literal) = expr else { return None };
    let Lit::Int(number) = &literal.lit else { return None };
    number.base10_parse().ok()
}

fn is_one(expr: &Expr) -> bool {
    let Expr::Lit(literal) = expr else { return false };
    matches!(&literal.lit, Lit::Float(number) if number.base10_parse().is_ok_and(|value: f64| value == 1.0))
}

/// Whether nothing around an expression can take it apart.
fn is_whole(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Path(_)
            | Expr::Lit(_)
            | Expr::Call(_)
            | Expr::MethodCall(_)
            | Expr::Index(_)
            | Expr::Field(_)
            | Expr::Paren(_)
            | Expr::Tuple(_)
            | Expr::Array(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(text: &str, expected: &str) {
        assert_eq!(
            formatted(&format!("fn f() {{\n{text}\n}}"), "").expect("Rust"),
            format!("fn f() {{\n{expected}\n}}\n")
        );
    }

    #[test]
    fn comments_stay_where_they_stood() {
        is(
            "// Why \"x\\y\".\n// On two lines.\nlet x = 1;",
            "    // Why \"x\\y\".\n    // On two lines.\n    let x = 1;",
        );
        is(
            "match x {\n// Rare.\n1 => {}\n_ => {}\n}",
            "    match x {\n        // Rare.\n        1 => {}\n        _ => {}\n    }",
        );
        let text = "/// Doc.\n// SAFETY: it is so.\nstatic X: u8 = unsafe { y() };\n";
        assert_eq!(formatted(text, "").expect("Rust"), text);
    }

    #[test]
    fn what_changes_nothing_is_left_out() {
        is(
            "x(a * 1, 1 * a, 0 * a, 0 * a + b, 0 + a, a + 0, a - 0, a >> 0, a << 0, a / 1, a / 1.0f32);",
            "    x(a, a, 0, b, a, a, a, a, a, a, a);",
        );
        is(
            "a |= ((b & 3) << 2);\nlet c = (d);\nx((a + b) * c, (a[0]));",
            "    a |= (b & 3) << 2;\n    let c = d;\n    x((a + b) * c, a[0]);",
        );
    }

    #[test]
    fn what_changes_something_stays() {
        for text in [
            "x(a * 1.0, a + 0.0, 0.0 + a, 1.0 * a);",
            "x(0 - a, 1 / a, 0 << a, a * 10, a - 1);",
            "x((a + b) * c, -(a + b));",
        ] {
            is(text, &format!("    {text}"));
        }
    }

    #[test]
    fn mistakes_of_emitters_are_told_with_their_line() {
        let error = formatted("fn f() {\nlet = 1;\n}", "").expect_err("not Rust");
        assert!(error.to_string().contains("let = 1;"), "{error}");
    }
}
