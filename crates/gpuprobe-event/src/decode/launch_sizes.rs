//! Launches whose sizes are in lists: as many global and local sizes as the launch has dimensions.

use super::{Words, argument_number, little_endian};
use crate::catalogue::Function;
use crate::effect::Launch;
use crate::event::{Name, Value};

/// Replaces the pointers to the sizes of a launch by the sizes.
pub(super) fn show_sizes(f: &Function, global: u8, words: &Words<'_>, values: &mut [(Name, Value)]) {
    let Some((global_sizes, local_sizes)) = launch_sizes(f, words) else { return };
    for (position, sizes) in [(Some(global), Some(global_sizes)), (f.roles.local, local_sizes)] {
        let value = position.and_then(|position| values.get_mut(usize::from(position)));
        if let (Some((_, value)), Some(sizes)) = (value, sizes) {
            *value = Value::Dim3(sizes);
        }
    }
}

/// The global sizes of a launch, and the local ones if the program gives them. Dimensions that the launch does not have
/// are 1. A size that does not fit is the largest that does.
fn launch_sizes(f: &Function, words: &Words<'_>) -> Option<([u32; 3], Option<[u32; 3]>)> {
    let dimensions = argument_number(f, f.roles.dimensions, words)?;
    let size = |index: usize| {
        let size = words.pointee.get(8 * index..8 * index + 8).map(little_endian)?;
        Some(u32::try_from(size).unwrap_or(u32::MAX))
    };
    let three = |first: usize| -> Option<[u32; 3]> {
        let mut sizes = [1; 3];
        for (at, value) in sizes.iter_mut().enumerate().take(usize::try_from(dimensions).unwrap_or(3)) {
            *value = size(first + at)?;
        }
        Some(sizes)
    };
    let local = three(3)?;
    Some((three(0)?, Some(local).filter(|local| !local.contains(&0))))
}

/// A launch by global and local sizes: a local size is a block, and the grid has as many blocks as cover the global
/// size. If the library chooses the local size, each work-item counts as a block.
pub(super) fn launch_of_sizes(f: &Function, words: &Words<'_>) -> Launch {
    let Some((global, local)) = launch_sizes(f, words) else { return Launch::default() };
    let block = local.unwrap_or([1; 3]);
    let grid = std::array::from_fn(|i| global[i].div_ceil(block[i]));
    Launch { grid: Some(grid), block: Some(block), ..Launch::default() }
}

#[cfg(test)]
mod tests {
    use super::super::{arguments, effect};
    use super::*;
    use crate::catalogue::{Api, catalogue};

    fn launched(dimensions: u64, sizes: [u64; 6]) -> Launch {
        let f = catalogue().lookup(Api::OpenCl, None, "clEnqueueNDRangeKernel").unwrap();
        let pointee: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        let registers = [1, 2, dimensions, 0, 0x1000, 0x2000, 0, 0];
        let words = Words { registers: &registers, pointee: &pointee, ..Words::default() };
        assert!(arguments(f, &words).is_some());
        effect(f, &words).launch().unwrap().clone()
    }

    #[test]
    fn blocks_cover_the_global_size() {
        let sides = |launch: &Launch| (launch.grid.unwrap(), launch.block.unwrap());
        assert_eq!(sides(&launched(1, [1000, 0, 0, 64, 0, 0])), ([16, 1, 1], [64, 1, 1]));
        assert_eq!(sides(&launched(2, [64, 8, 9, 16, 2, 9])), ([4, 4, 1], [16, 2, 1]));
        assert_eq!(sides(&launched(3, [5, 6, 7, 0, 0, 0])), ([5, 6, 7], [1, 1, 1]), "chosen by the library");
        assert_eq!(sides(&launched(1, [1 << 40, 0, 0, 0, 0, 0])).0, [u32::MAX, 1, 1]);
    }
}
