//! Types of metadata values.

/// Declares the value types with their ids, names and sizes.
macro_rules! value_types {
    ($($(#[$meta:meta])* $variant:ident = $id:literal, $name:literal, $least:literal;)*) => {
        /// Type of a metadata value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType { $($(#[$meta])* $variant = $id,)* }

        impl ValueType {
            /// Every type, by id.
            pub const ALL: &'static [ValueType] = &[$(ValueType::$variant,)*];

            /// The type with this id in a file.
            pub const fn from_id(id: u32) -> Option<ValueType> {
                match id { $($id => Some(ValueType::$variant),)* _ => None }
            }

            /// Its id in a file.
            pub const fn id(self) -> u32 {
                self as u32
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$variant => $name,)* }
            }

            /// Bytes of the shortest value of the type.
            pub(super) const fn least_bytes(self) -> u64 {
                match self { $(ValueType::$variant => $least,)* }
            }
        }
    };
}

value_types! {
    /// Unsigned byte.
    U8 = 0, "u8", 1;
    /// Signed byte.
    I8 = 1, "i8", 1;
    /// Unsigned, 16 bits.
    U16 = 2, "u16", 2;
    /// Signed, 16 bits.
    I16 = 3, "i16", 2;
    /// Unsigned, 32 bits.
    U32 = 4, "u32", 4;
    /// Signed, 32 bits.
    I32 = 5, "i32", 4;
    /// IEEE binary32.
    F32 = 6, "f32", 4;
    /// One byte, 0 or 1.
    Bool = 7, "bool", 1;
    /// UTF-8 with its length in front.
    String = 8, "string", 8;
    /// Element type, count, elements.
    Array = 9, "array", 12;
    /// Unsigned, 64 bits.
    U64 = 10, "u64", 8;
    /// Signed, 64 bits.
    I64 = 11, "i64", 8;
    /// IEEE binary64.
    F64 = 12, "f64", 8;
}

impl std::fmt::Display for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
