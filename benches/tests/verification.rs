//! Verification finds what a store does wrong: a map that lies now and then.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use onesided_bench::run::history::Verdicts;
use onesided_bench::run::phase::{self, Plan};
use onesided_bench::target::{
    Counters, Description, Operation, Options, Outcome, Session, Target, Usage, open,
};
use onesided_bench::workload::operations::{Phase, Shared, Stream};
use onesided_bench::workload::properties::Properties;
use onesided_bench::workload::spec::Workload;

/// Of so many reads one is answered with a lie.
const LIE_ONE_OF: u64 = 50;

#[derive(Clone, Copy, PartialEq)]
enum Lie {
    Nothing,
    /// The first value that was read of this key.
    Old,
    /// The second half is that of the first value.
    Torn,
    /// Another record's value.
    Foreign,
    Absent,
}

struct Liar {
    map: Box<dyn Target>,
    lie: Lie,
}

impl Target for Liar {
    fn name(&self) -> String {
        "liar".to_owned()
    }
    fn describe(&self) -> Result<Description> {
        self.map.describe()
    }
    fn session(&self, client: usize) -> Result<Box<dyn Session>> {
        let (map, first) = (self.map.session(client)?, HashMap::new());
        Ok(Box::new(LyingSession { map, lie: self.lie, first, last: vec![], reads: 0 }))
    }
    fn usage(&self) -> Result<Option<Usage>> {
        Ok(None)
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn clear(&self) -> Result<()> {
        Ok(())
    }
}

struct LyingSession {
    map: Box<dyn Session>,
    lie: Lie,
    first: HashMap<Vec<u8>, Vec<u8>>,
    last: Vec<u8>,
    reads: u64,
}

impl Session for LyingSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        let Self { map, lie, first, last, reads } = self;
        map.execute(batch, &mut |place, outcome| {
            let (Operation::Read { key }, Outcome::Found(value)) = (batch[place], outcome) else {
                return answer(place, outcome);
            };
            *reads += 1;
            let old = first.entry(key.to_vec()).or_insert_with(|| value.to_vec());
            if *reads % LIE_ONE_OF != 0 {
                last.clear();
                last.extend_from_slice(value);
                return answer(place, outcome);
            }
            match lie {
                Lie::Nothing => answer(place, outcome),
                Lie::Old => answer(place, Outcome::Found(old)),
                Lie::Torn => {
                    // In the middle of a field.
                    let half = value.len() / 2 + 7;
                    answer(place, Outcome::Found(&[&value[..half], &old[half..]].concat()));
                }
                Lie::Foreign => answer(place, Outcome::Found(last)),
                Lie::Absent => answer(place, Outcome::Absent),
            }
        })
    }
}

fn verdicts(lie: Lie) -> Verdicts {
    let text = "recordcount=20\noperationcount=20000\nreadproportion=0.5\nupdateproportion=0.5\n\
                fieldcount=4\nfieldlength=32\ndataintegrity=true\nrequestdistribution=zipfian\n\
                writeallfields=true\n";
    let mut properties = Properties::default();
    properties.parse(text, "test").expect("properties");
    let workload = Workload::new(properties, false).expect("a workload");
    let map = open("map://", &Options::default()).expect("a map");
    let target = Liar { map, lie };
    let shared = Shared::new(workload, 2, 7).expect("shared");
    let mut plan = Plan {
        threads: 2,
        clients: 2,
        pipeline: 3,
        operations: Some(20),
        duration: Some(Duration::from_secs(60)),
        rate: None,
    };
    let run = |plan: &Plan, phase| {
        let source = |thread| Stream::new(&shared, phase, thread);
        phase::run(&target, plan, source, |_, _| true).expect("it runs").measure.verdicts
    };
    run(&plan, Phase::Load);
    plan.operations = Some(20_000);
    run(&plan, Phase::Run)
}

#[test]
fn a_map_that_does_not_lie_is_clean() {
    let found = verdicts(Lie::Nothing);
    assert!(found.is_clean() && found.checked > 9000, "{found:?}");
}

#[test]
fn lies_are_found() {
    let old = verdicts(Lie::Old);
    assert!(old.stale > 50 && old.wrong == 0, "{old:?}");
    let torn = verdicts(Lie::Torn);
    assert!(torn.wrong > 50, "{torn:?}");
    let foreign = verdicts(Lie::Foreign);
    assert!(foreign.wrong > 50, "{foreign:?}");
    let absent = verdicts(Lie::Absent);
    assert!(absent.lost > 100 && absent.wrong + absent.stale == 0, "{absent:?}");
}
