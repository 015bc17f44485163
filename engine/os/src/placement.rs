//! Where in physical memory frames come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where frames lie in physical memory. Blocks of 2 MiB and more lie lowest, but for
/// [`Placement::Scattered`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In 2 MiB blocks drawn at random, as in memory that has been in use for long. Data uses a
    /// block up before the next is drawn; each small page-table node has a frame at random of a
    /// block without data.
    #[default]
    Scattered,
    /// From the lowest address on, as in memory that has just been started with.
    Compact,
    /// Data from the lowest address on, and page tables in the highest 1 GiB: where data lies, and with it
    /// what memory's banks and rows make of it, does not depend on the tables.
    Apart,
    /// Each 4 KiB frame drawn at random from the lowest 1 GiB that is not full: without gaps, but
    /// in no order.
    Permuted,
    /// Each 4 KiB frame drawn at random from the upper half of the memory.
    #[serde(rename = "scattered_4k")]
    Scattered4k,
}
