//! Expressions of scalars. Constants are folded when an expression is made.

use gristmill_spec::model::Scalar;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Shl, Shr, Sub};

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F32,
    F64,
    I8,
    I16,
    I32,
    U8,
    U16,
    U32,
    Bool,
}

impl Type {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Type::Bool => 1,
            Type::I8 | Type::U8 => 8,
            Type::I16 | Type::U16 => 16,
            Type::F32 | Type::I32 | Type::U32 => 32,
            Type::F64 => 64,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::I8 | Type::I16 | Type::I32)
    }

    /// The smallest unsigned integer that has so many bits, at most 32.
    pub(crate) fn unsigned(bits: u32) -> Type {
        match bits {
            0..=8 => Type::U8,
            9..=16 => Type::U16,
            _ => Type::U32,
        }
    }

    /// The signed integer of the same size.
    fn signed(self) -> Type {
        match self.bits() {
            0..=8 => Type::I8,
            9..=16 => Type::I16,
            _ => Type::I32,
        }
    }
}

/// Which of two neighbours a number halfway between them is rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    Even,
    AwayFromZero,
    TowardZero,
}

/// Operations on one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    /// Integers of less than 32 bits are taken modulo their width.
    Negated,
    Magnitude,
    /// An f32 to an integer.
    Nearest(Tie),
    /// An f32 to an integer, towards zero.
    Truncated,
    IsFinite,
    /// The number of ones in an integer of 32 bits.
    Ones,
    /// The bits of an f32.
    Bits,
    /// The f32 of these bits.
    FromBits,
    /// The f32 that the bits of a type stand for, where processors have an instruction or a library a function.
    Widened(Scalar),
    /// The bits of the number of a type that is nearest to an f32, ties to even.
    Narrowed(Scalar),
    /// That number as f32; NaN need not stay one.
    Rounded(Scalar),
}

/// Operations on two numbers of one type; a shift takes any integer on its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    /// Integers of less than 32 bits are taken modulo their width, here and in `Sub` and `Mul`.
    Add,
    Sub,
    Mul,
    Div,
    And,
    Or,
    Shl,
    Shr,
    /// Of floats, the number where one is NaN.
    Max,
    Min,
    Less,
    Equal,
    /// The magnitude of the left one with the sign of the right one.
    WithSignOf,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    /// What the code around calls so.
    Name(Type, String),
    Float(Type, f64),
    Int(Type, i64),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// The same number in another type; of integers as many bits as it has, of floats the nearest. An f32 that becomes an integer is
    /// one already, and in range.
    Convert(Type, Box<Expr>),
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
}

/// What the code around calls so, an f32.
pub(crate) fn f32(name: impl Into<String>) -> Expr {
    Expr::name(Type::F32, name)
}

/// The same, an i32.
pub(crate) fn i32(name: impl Into<String>) -> Expr {
    Expr::name(Type::I32, name)
}

/// The same, a u32.
pub(crate) fn u32(name: impl Into<String>) -> Expr {
    Expr::name(Type::U32, name)
}

impl Expr {
    pub(crate) fn name(ty: Type, name: impl Into<String>) -> Expr {
        Expr::Name(ty, name.into())
    }

    pub(crate) fn f32(value: f32) -> Expr {
        Expr::Float(Type::F32, value.into())
    }

    pub(crate) fn f64(value: f64) -> Expr {
        Expr::Float(Type::F64, value)
    }

    /// An integer, modulo the type's width.
    pub(crate) fn int(ty: Type, value: i64) -> Expr {
        let unused = 64 - ty.bits();
        let value = if ty.is_signed() {
            value << unused >> unused
        } else {
            (value.cast_unsigned() << unused >> unused).cast_signed()
        };
        Expr::Int(ty, value)
    }

    pub(crate) fn ty(&self) -> Type {
        match self {
            Expr::Name(ty, _) | Expr::Float(ty, _) | Expr::Int(ty, _) | Expr::Convert(ty, _) => *ty,
            Expr::Unary(Unary::IsFinite, _) | Expr::Binary(Binary::Less | Binary::Equal, ..) => Type::Bool,
            Expr::Unary(Unary::Bits, _) => Type::U32,
            Expr::Unary(Unary::Narrowed(scalar), _) => Type::unsigned(scalar.bits()),
            Expr::Unary(Unary::FromBits | Unary::Widened(_), _) => Type::F32,
            Expr::Unary(_, of) => of.ty(),
            Expr::Binary(_, left, _) => left.ty(),
            Expr::Select(_, then, _) => then.ty(),
        }
    }

    pub(crate) fn unary(op: Unary, of: Expr) -> Expr {
        match (op, &of) {
            (Unary::Negated, Expr::Float(ty, value)) => Expr::Float(*ty, -value),
            (Unary::Magnitude, Expr::Float(ty, value)) => Expr::Float(*ty, value.abs()),
            (Unary::Negated, Expr::Int(ty, value)) => Expr::int(*ty, -value),
            (Unary::FromBits, Expr::Int(_, bits)) => Expr::f32(f32::from_bits(*bits as u32)),
            _ => Expr::Unary(op, Box::new(of)),
        }
    }

    pub(crate) fn binary(op: Binary, left: Expr, right: Expr) -> Expr {
        if let Some(folded) = folded(op, &left, &right) {
            return folded;
        }
        match (op, right) {
            // As a person would write it.
            (Binary::Add, Expr::Int(ty, value)) if value < 0 && ty.is_signed() => {
                Expr::Binary(Binary::Sub, Box::new(left), Box::new(Expr::int(ty, -value)))
            }
            (Binary::Sub, Expr::Int(ty, value)) if value < 0 && ty.is_signed() => {
                Expr::Binary(Binary::Add, Box::new(left), Box::new(Expr::int(ty, -value)))
            }
            (op, right) => Expr::Binary(op, Box::new(left), Box::new(right)),
        }
    }

    pub(crate) fn to(self, ty: Type) -> Expr {
        match self {
            same if same.ty() == ty => same,
            Expr::Int(_, value) if !ty.is_float() => Expr::int(ty, value),
            Expr::Int(_, value) if ty == Type::F32 => Expr::f32(value as f32),
            Expr::Float(_, value) if ty == Type::F32 => Expr::f32(value as f32),
            Expr::Float(_, value) if ty == Type::F64 => Expr::f64(value),
            of => Expr::Convert(ty, Box::new(of)),
        }
    }

    pub(crate) fn select(condition: Expr, then: Expr, otherwise: Expr) -> Expr {
        match condition {
            Expr::Int(Type::Bool, 0) => otherwise,
            Expr::Int(Type::Bool, _) => then,
            condition => Expr::Select(Box::new(condition), Box::new(then), Box::new(otherwise)),
        }
    }

    /// A product of f32, those that there are; of none 1.
    pub(crate) fn product(factors: impl IntoIterator<Item = Option<Expr>>) -> Expr {
        factors.into_iter().flatten().reduce(Mul::mul).unwrap_or_else(|| Expr::f32(1.0))
    }

    pub(crate) fn less(self, than: Expr) -> Expr {
        Expr::binary(Binary::Less, self, than)
    }

    pub(crate) fn equals(self, other: Expr) -> Expr {
        Expr::binary(Binary::Equal, self, other)
    }

    pub(crate) fn at_least(self, low: Expr) -> Expr {
        Expr::binary(Binary::Max, self, low)
    }

    pub(crate) fn at_most(self, high: Expr) -> Expr {
        Expr::binary(Binary::Min, self, high)
    }

    /// Whether it is neither an infinity nor NaN.
    pub(crate) fn finite(self) -> Expr {
        Expr::unary(Unary::IsFinite, self)
    }

    /// The lowest `bits` of an integer.
    pub(crate) fn low(self, bits: u32) -> Expr {
        let known = match &self {
            Expr::Binary(Binary::Shr, of, places) if !of.ty().is_signed() => match **places {
                Expr::Int(_, places) => of.ty().bits() - places as u32,
                _ => of.ty().bits(),
            },
            of => of.ty().bits(),
        };
        if bits >= known {
            return self;
        }
        let mask = Expr::int(self.ty(), (1 << bits) - 1);
        self & mask
    }

    /// The lowest `bits` as two's complement.
    pub(crate) fn sign_extended(self, bits: u32) -> Expr {
        let (ty, up) = (self.ty(), self.ty().bits() - bits);
        (self << up).to(ty.signed()) >> up
    }
}

/// What is known when the expression is made: operations on constants, and those that change nothing. Of floats only
/// a division by one: `x * 1.0` and `x + 0.0` are not the same for every NaN and for minus zero.
fn folded(op: Binary, left: &Expr, right: &Expr) -> Option<Expr> {
    use Binary::{Add, And, Div, Equal, Less, Mul, Shl, Shr, Sub};
    match (left, right) {
        (Expr::Float(Type::F32, a), Expr::Float(Type::F32, b)) if matches!(op, Mul | Div) => {
            let (a, b) = (*a as f32, *b as f32);
            Some(Expr::f32(if op == Mul { a * b } else { a / b }))
        }
        (Expr::Float(_, a), Expr::Float(_, b)) if op == Less => Some(Expr::int(Type::Bool, (a < b).into())),
        (Expr::Float(ty, a), Expr::Float(_, b)) if op == Binary::WithSignOf => {
            Some(Expr::Float(*ty, a.copysign(*b)))
        }
        (_, Expr::Float(_, 1.0)) if op == Div => Some(left.clone()),
        (Expr::Int(ty, a), Expr::Int(_, b)) => {
            let places = u32::try_from(*b).ok().filter(|places| *places < ty.bits());
            Some(match op {
                Add => Expr::int(*ty, a + b),
                Sub => Expr::int(*ty, a - b),
                Mul => Expr::int(*ty, a * b),
                And => Expr::int(*ty, a & b),
                Shl => Expr::int(*ty, a << places?),
                Shr => Expr::int(*ty, a >> places?),
                Less => Expr::int(Type::Bool, (a < b).into()),
                Equal => Expr::int(Type::Bool, (a == b).into()),
                Div | Binary::Or | Binary::Max | Binary::Min | Binary::WithSignOf => return None,
            })
        }
        (_, Expr::Int(_, 0)) if matches!(op, Add | Sub | Shl | Shr) => Some(left.clone()),
        (_, Expr::Int(_, 1)) if matches!(op, Mul | Div) => Some(left.clone()),
        _ => None,
    }
}

macro_rules! operators {
    ($($of:ident $method:ident $binary:ident),*) => {$(
        impl $of for Expr {
            type Output = Expr;

            fn $method(self, right: Expr) -> Expr {
                Expr::binary(Binary::$binary, self, right)
            }
        }
    )*};
}

operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, BitAnd bitand And, BitOr bitor Or);

impl Shl<u32> for Expr {
    type Output = Expr;

    fn shl(self, up: u32) -> Expr {
        Expr::binary(Binary::Shl, self, Expr::int(Type::I32, up.into()))
    }
}

impl Shr<u32> for Expr {
    type Output = Expr;

    fn shr(self, down: u32) -> Expr {
        Expr::binary(Binary::Shr, self, Expr::int(Type::I32, down.into()))
    }
}

impl Neg for Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        Expr::unary(Unary::Negated, self)
    }
}
