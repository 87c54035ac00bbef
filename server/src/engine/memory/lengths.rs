//! Which lengths memory can have.

use super::{BLOCK_MIN_BYTES, EngineConfig, EngineError, REGION_BYTES, REGIONS_MAX};

/// Looks for lengths that cannot be; the limit in whole segments, and how many regions at most.
pub(in crate::engine) fn check(config: &EngineConfig) -> Result<(usize, usize), EngineError> {
    let (segment_bytes, region_bytes) = (config.segment_bytes, config.region_bytes);
    let wrong = |text: String| Err(EngineError::Config(text));
    if segment_bytes < BLOCK_MIN_BYTES || !segment_bytes.is_power_of_two() {
        return wrong(format!("segment_bytes = {segment_bytes} is not a power of two >= 1024"));
    }
    if region_bytes > REGION_BYTES || region_bytes == 0 || region_bytes % segment_bytes != 0 {
        return wrong(format!(
            "region_bytes = {region_bytes} is not a multiple of segment_bytes = {segment_bytes} \
             up to {REGION_BYTES}"
        ));
    }
    let limit_bytes = config.memory_bytes / segment_bytes * segment_bytes;
    let regions = 1 + limit_bytes.div_ceil(region_bytes);
    if regions > REGIONS_MAX || limit_bytes == 0 {
        return wrong(format!(
            "memory_bytes = {} must be at least one segment of {segment_bytes} bytes and at most \
             {} regions of {region_bytes} bytes",
            config.memory_bytes,
            REGIONS_MAX - 1
        ));
    }
    Ok((limit_bytes, regions))
}
