//! Defines the shapes that the values of several keys have. A shape says which values are valid.
//!
//! Each shape accepts every value that the reader accepts, and rejects as many other values as a pattern can.

pub(crate) use crate::language::shape::{DURATION, POSITIVE_DURATION};
use crate::language::shape::{Decimal, Definition, Least, Scalars, Shape, Text};
use ledger::money;

pub(crate) const SCALAR: Shape = Shape::Defined(&Definition { name: "scalar", shape: Shape::Scalar });

pub(crate) const PATH: Shape = Shape::Defined(&Definition { name: "path", shape: Shape::Scalar });

pub(crate) const BOOLEAN: Shape = Shape::Defined(&Definition { name: "boolean", shape: Shape::Boolean });

/// The shape of a name, such as the name of a rule. Such a name can be in responses, metrics and logs unchanged.
pub(crate) const NAME: Shape = Shape::Defined(&Definition {
    name: "name",
    shape: Shape::Text(Text::new(Scalars::Written, &[NAME_PATTERN], NAME_MUST)),
});

/// The regular expression that a name must match.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_.-]{1,64}$";

/// The message for an invalid name, without the "must" at its start.
pub(crate) const NAME_MUST: &str = "be 1 to 64 of letters, digits, `_`, `.` and `-`";

pub(crate) const SIZE: Shape = Shape::Defined(&Definition {
    name: "size",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &["^[0-9]+(B|KiB|MiB|GiB)$"],
        "be a size like 512B, 64KiB, 10MiB or 1GiB",
    )),
});

/// The regular expression that an IP address with a port must match.
pub(crate) const SOCKET_ADDRESS_PATTERN: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+$";

pub(crate) const SOCKET_ADDRESS: Shape = Shape::Defined(&Definition {
    name: "socket_address",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &[SOCKET_ADDRESS_PATTERN],
        "be an IP address with a port, like 0.0.0.0:8080 or [::]:8080",
    )),
});

pub(crate) const NETWORK: Shape = Shape::Defined(&Definition {
    name: "network",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &[
            r"^([0-9]+(\.[0-9]+){3}(/0*([0-9]|[12][0-9]|3[0-2]))?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(/0*([0-9]{1,2}|1[01][0-9]|12[0-8]))?)$",
        ],
        "be a network like 10.0.0.0/8 or 2001:db8::/32",
    )),
});

/// The shape of a number of 0 or more, with decimals.
pub(crate) const AMOUNT_FROM_ZERO: Shape = Shape::Defined(&Definition {
    name: "amount_from_zero",
    shape: Shape::Decimal(Decimal { least: Least::Zero, most: None, decimals: 3 }),
});

/// The shape of an amount of 0 or more. The amount may be money, so it may have the decimals of money.
pub(crate) const AMOUNT_OR_MONEY_FROM_ZERO: Shape = Shape::Defined(&Definition {
    name: "amount_or_money_from_zero",
    shape: Shape::Decimal(Decimal { least: Least::Zero, most: None, decimals: money::MAX_DECIMALS }),
});

/// The shape of an amount above 0. The amount may be money, so it may have the decimals of money.
pub(crate) const AMOUNT_OR_MONEY: Shape = Shape::Defined(&Definition {
    name: "amount_or_money",
    shape: Shape::Decimal(Decimal { least: Least::AboveZero, most: None, decimals: money::MAX_DECIMALS }),
});

/// The shape of a number above 0 with decimals: a cost, or a rate per second.
pub(crate) const AMOUNT: Shape = Shape::Defined(&Definition {
    name: "amount",
    shape: Shape::Decimal(Decimal { least: Least::AboveZero, most: None, decimals: 3 }),
});
