//! YCSB's six workloads, which ship in config/workloads.

use anyhow::Result;

use super::properties::Properties;

/// By letter.
pub const STANDARD: [(&str, &str); 6] = [
    ("a", include_str!("../../../config/workloads/workloada")),
    ("b", include_str!("../../../config/workloads/workloadb")),
    ("c", include_str!("../../../config/workloads/workloadc")),
    ("d", include_str!("../../../config/workloads/workloadd")),
    ("e", include_str!("../../../config/workloads/workloade")),
    ("f", include_str!("../../../config/workloads/workloadf")),
];

/// Adds what the workload of a letter says; false if there is none.
pub fn read(letter: &str, properties: &mut Properties) -> Result<bool> {
    let found = STANDARD.iter().find(|(name, _)| name.eq_ignore_ascii_case(letter));
    let Some((name, text)) = found else { return Ok(false) };
    properties.parse(text, &format!("workload {name}"))?;
    Ok(true)
}
