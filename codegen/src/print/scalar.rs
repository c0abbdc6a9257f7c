//! Scalar expressions as text: what Rust and C++ have in common, which are signs between operands and parentheses around them.

use crate::lower::ir::{Binary, Expr, Type, Unary};

/// Text of an expression, with what it is.
pub(super) struct Text {
    pub(super) text: String,
    pub(super) shape: Shape,
}

/// What decides whether an operand has parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A name, a number, a call.
    Whole,
    /// With a sign in front that binds tighter than any between operands.
    Prefixed,
    Product,
    Sum,
    Shift,
    And,
    Or,
    Comparison,
    /// Binds less than all others.
    Loose,
}

impl Text {
    pub(super) fn whole(text: impl Into<String>) -> Text {
        Text { text: text.into(), shape: Shape::Whole }
    }

    /// As an operand of what takes only wholes.
    pub(super) fn closed(self) -> String {
        if self.shape == Shape::Whole { self.text } else { format!("({})", self.text) }
    }

    /// Behind a sign.
    pub(super) fn prefixed(self) -> String {
        if self.shape == Shape::Prefixed { self.text } else { self.closed() }
    }

    /// Beside signs that bind less than all between operands.
    pub(super) fn tight(self) -> String {
        if self.shape == Shape::Loose { format!("({})", self.text) } else { self.text }
    }

    /// As an operand between others: products in sums, shifts beside a mask and chains from the left need no parentheses in either
    /// language, and no reader needs them.
    fn operand(self, of: Shape, left: bool) -> String {
        let bare = match (of, self.shape) {
            (_, Shape::Whole | Shape::Prefixed) => true,
            (Shape::Sum, Shape::Product) | (Shape::And, Shape::Shift) => true,
            (Shape::Comparison, Shape::Sum | Shape::Product) => true,
            (Shape::Sum, Shape::Sum) | (Shape::Product, Shape::Product) => left,
            _ => false,
        };
        if bare { self.text } else { format!("({})", self.text) }
    }
}

/// What differs between languages.
pub(super) trait Language {
    fn float(&self, ty: Type, value: f64) -> String;
    /// The integer that is `text` in both.
    fn int(&self, ty: Type, text: &str) -> String;
    fn unary(&self, op: Unary, of: Text) -> Text;
    /// The function of an operation that is no sign between operands, of numbers of a type.
    fn function(&self, op: Binary, ty: Type) -> Option<&'static str>;
    fn call(&self, function: &str, left: Text, right: Text) -> String;
    fn convert(&self, from: Type, to: Type, of: Text) -> Text;
    fn select(&self, condition: Text, then: Text, otherwise: Text) -> String;

    /// The text of an expression.
    fn print(&self, expr: &Expr) -> Text {
        match expr {
            Expr::Name(_, name) => named(name),
            Expr::Float(ty, value) => number(self.float(*ty, *value)),
            Expr::Int(ty, large @ 0x1_0000..) => number(self.int(*ty, &format!("{large:#x}"))),
            Expr::Int(ty, value) => number(self.int(*ty, &value.to_string())),
            Expr::Unary(op, of) => self.unary(*op, self.print(of)),
            Expr::Convert(to, of) => self.convert(of.ty(), *to, self.print(of)),
            Expr::Select(condition, then, otherwise) => Text {
                text: self.select(self.print(condition), self.print(then), self.print(otherwise)),
                shape: Shape::Loose,
            },
            Expr::Binary(op, left, right) => {
                let (left, of) = (self.print(left), left.ty());
                let right = match &**right {
                    Expr::Int(ty, mask) if *op == Binary::And => number(self.int(*ty, &format!("{mask:#x}"))),
                    right => self.print(right),
                };
                if let Some(function) = self.function(*op, of) {
                    return Text::whole(self.call(function, left, right));
                }
                let (sign, shape) = match op {
                    Binary::Mul => ("*", Shape::Product),
                    Binary::Div => ("/", Shape::Product),
                    Binary::Sub => ("-", Shape::Sum),
                    Binary::Shl => ("<<", Shape::Shift),
                    Binary::Shr => (">>", Shape::Shift),
                    Binary::And => ("&", Shape::And),
                    Binary::Or => ("|", Shape::Or),
                    Binary::Less => ("<", Shape::Comparison),
                    Binary::Equal => ("==", Shape::Comparison),
                    // The others are functions in both languages.
                    Binary::Add | Binary::Max | Binary::Min | Binary::WithSignOf => ("+", Shape::Sum),
                };
                let text = format!("{} {sign} {}", left.operand(shape, true), right.operand(shape, false));
                Text { text, shape }
            }
        }
    }
}

/// A variable of the loop around: a place or a call, unless signs stand between its parts, which no sign around may take apart.
fn named(name: &str) -> Text {
    let mut depth = 0;
    let open = name.chars().any(|c| {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        depth == 0 && c == ' '
    });
    Text { text: name.to_owned(), shape: if open { Shape::Loose } else { Shape::Whole } }
}

fn number(text: String) -> Text {
    let shape = if text.starts_with('-') { Shape::Prefixed } else { Shape::Whole };
    Text { text, shape }
}

#[cfg(test)]
mod tests {
    use crate::lower::ir::{Binary, Expr, Tie, Type, Unary, f32};
    use crate::print::{cuda, rust};

    #[track_caller]
    fn are(expr: Expr, in_rust: &str, in_cuda: &str) {
        assert_eq!((rust::expr(&expr).as_str(), cuda::expr(&expr).as_str()), (in_rust, in_cuda));
    }

    fn x() -> Expr {
        Expr::name(Type::F32, "x")
    }

    fn code() -> Expr {
        Expr::name(Type::U32, "code")
    }

    #[test]
    fn operands_have_the_parentheses_that_they_need() {
        are(f32("a + b") * f32("c[i + 1]"), "(a + b) * c[i + 1]", "(a + b) * c[i + 1]");
        are((x() + x()) * x(), "(x + x) * x", "(x + x) * x");
        are(x() - (x() - x() * x()), "x - (x - x * x)", "x - (x - x * x)");
        are(x() / x() / x(), "x / x / x", "x / x / x");
        are(-(x() + x()), "-(x + x)", "-(x + x)");
        are((code() >> 3).low(4), "code >> 3 & 0xf", "code >> 3 & 0xfu");
        are(code().low(4) << 3, "(code & 0xf) << 3", "(code & 0xfu) << 3");
        are(code().low(4).equals(code()), "(code & 0xf) == code", "(code & 0xfu) == code");
        are(
            Expr::select(code().less(Expr::int(Type::U32, 2)), x(), -x()) * x(),
            "(if code < 2 { x } else { -x }) * x",
            "(code < 2u ? x : -x) * x",
        );
    }

    #[test]
    fn conversions_and_functions_are_those_of_the_language() {
        are(
            Expr::unary(Unary::Nearest(Tie::Even), x() * x()).at_least(Expr::f32(-8.0)),
            "(x * x).round_ties_even().max(-8.0f32)",
            "gm_max(gm_rint(x * x), -8.0f)",
        );
        are(
            Expr::binary(Binary::WithSignOf, Expr::f32(-1.0), x()),
            "(-1.0f32).copysign(x)",
            "gm_copysign(-1.0f, x)",
        );
        are(code().to(Type::F32) * x(), "(code as f32) * x", "(f32)code * x");
        are(code().sign_extended(4), "((code << 28) as i32) >> 28", "(i32)(code << 28) >> 28");
        let byte = Expr::name(Type::U8, "byte");
        are(byte.clone().to(Type::I16), "i16::from(byte)", "(i16)byte");
        are(byte.to(Type::I8) * Expr::int(Type::I8, 3), "(byte as i8).wrapping_mul(3)", "(i8)byte * 3");
        are(x().to(Type::I32), "unsafe { x.to_int_unchecked::<i32>() }", "gm_to_i32(x)");
        are(Expr::f32(f32::INFINITY), "f32::INFINITY", "gm_float(0x7f800000u)");
    }

    #[test]
    fn what_is_known_is_computed_and_nothing_else_of_floats() {
        let int = |value| Expr::int(Type::I32, value);
        let i = || Expr::name(Type::I32, "i");
        are(i() * int(1) + int(0), "i", "i");
        are(i() - int(-3), "i + 3", "i + 3");
        are(int(5) * int(-3), "-15", "-15");
        are(Expr::f32(0.0) / Expr::f32(-8.0), "-0.0f32", "-0.0f");
        are(x() / Expr::f32(1.0), "x", "x");
        are(x() * Expr::f32(1.0) + Expr::f32(0.0), "x * 1.0f32 + 0.0f32", "x * 1.0f + 0.0f");
        are(Expr::int(Type::U8, 0x1ff), "255", "255u");
    }
}
