//! Enumerations of values from the network: a value without a name stays representable.

macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident($raw:ty) { $($(#[$vdoc:meta])* $variant:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $raw);
        #[allow(non_upper_case_globals)]
        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)*
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$variant => f.write_str(stringify!($variant)),)*
                    Self(other) => write!(f, concat!(stringify!($name), "({:#x})"), other),
                }
            }
        }
    };
}
