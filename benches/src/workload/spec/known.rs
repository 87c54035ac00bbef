//! Properties that YCSB knows.

/// Those that have an effect here.
pub(super) const USED: &[&str] = &[
    "dataintegrity",
    "exponential.frac",
    "exponential.percentile",
    "fieldcount",
    "fieldlength",
    "fieldlengthdistribution",
    "fieldlengthhistogram",
    "hdrhistogram.percentiles",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "insertcount",
    "insertorder",
    "insertproportion",
    "insertstart",
    "maxexecutiontime",
    "maxscanlength",
    "measurement.interval",
    "minfieldlength",
    "minscanlength",
    "operationcount",
    "readallfields",
    "readmodifywriteproportion",
    "readproportion",
    "recordcount",
    "requestdistribution",
    "scanlengthdistribution",
    "scanproportion",
    "target",
    "threadcount",
    "updateproportion",
    "workload",
    "writeallfields",
    "zeropadding",
];

/// Those that a file may have and that mean nothing here: how YCSB itself reports, and what its
/// bindings call tables and fields.
pub(super) const IGNORED: &[&str] = &[
    "columnfamily",
    "core_workload_insertion_keep_going_on_error",
    "core_workload_insertion_retry_interval",
    "core_workload_insertion_retry_limit",
    "db",
    "discardscannedrecord",
    "dotransactions",
    "exporter",
    "exportfile",
    "fieldnameprefix",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "histogram.buckets",
    "label",
    "latencytrackederrors",
    "measurement.histogram.verbose",
    "measurement.raw.output_file",
    "measurement.trackjvm",
    "maxscanrate",
    "measurementtype",
    "readallfieldsbyname",
    "reportlatencyforeacherror",
    "status",
    "status.interval",
    "table",
    "timeseries.granularity",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_ycsb_s_template_are_known() {
        let template = "recordcount operationcount workload core_workload_insertion_retry_limit \
            insertstart insertcount fieldcount fieldlength minfieldlength readallfields \
            writeallfields fieldlengthdistribution readproportion updateproportion \
            insertproportion readmodifywriteproportion scanproportion minscanlength maxscanlength \
            scanlengthdistribution insertorder requestdistribution hotspotdatafraction \
            hotspotopnfraction maxexecutiontime table columnfamily measurementtype \
            histogram.buckets timeseries.granularity discardscannedrecord maxscanrate \
            core_workload_insertion_keep_going_on_error core_workload_insertion_retry_interval \
            hdrhistogram.percentiles hdrhistogram.fileoutput hdrhistogram.output.path \
            measurement.raw.output_file zeropadding latencytrackederrors \
            reportlatencyforeacherror";
        for key in template.split_whitespace() {
            assert_ne!(USED.contains(&key), IGNORED.contains(&key), "{key}");
        }
    }
}
