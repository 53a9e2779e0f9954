//! Describes the functions of the catalogue as rows of the BPF table of functions.

pub(crate) mod arg_loc;
pub(crate) mod function_row;
pub(crate) mod op_desc;
