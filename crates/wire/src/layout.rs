//! Layouts of structures whose length is checked at compile time.

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident: $length:literal
        { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $length);
    };
}
