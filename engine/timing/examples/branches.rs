//! How often each predictor is wrong about the branches of a trace, by the kind of branch:
//!
//!     cargo run --release -p flatwalk-timing --example branches -- TRACE [INSTRUCTIONS]
//!
//! TRACE is of any known format; the first INSTRUCTIONS are looked at (all). The predictors are
//! those of the core, without the rest of it; gshare has 14 history bits, as machine
//! `skylake-server`. Where another thread runs, the branch before is not judged, as in the core.

use std::error::Error;
use std::path::Path;

use flatwalk_timing::Machine;
use flatwalk_timing::config::machine::BranchPredictor;
use flatwalk_timing::core::branch::Predictor;
use flatwalk_timing::core::decode::{BlockDecoder, Control, DecodedBlock};
use flatwalk_trace::Item;

const PREDICTORS: [(&str, BranchPredictor); 3] = [
    ("gshare", BranchPredictor::Gshare),
    ("hashed_perceptron", BranchPredictor::HashedPerceptron),
    ("tage_sc_l", BranchPredictor::TageScL),
];
const KINDS: [&str; 3] = ["conditional", "computed", "returns"];

fn kind(control: Control) -> Option<usize> {
    match control {
        Control::Conditional => Some(0),
        Control::IndirectJump | Control::IndirectCall => Some(1),
        Control::Return => Some(2),
        Control::None | Control::Jump | Control::Call => None,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let trace = arguments.next().ok_or("no trace; see the top of this file")?;
    let limit: u64 = arguments.next().map_or(Ok(u64::MAX), |n| n.parse())?;
    let machines =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data/machines");
    let machine = std::fs::read_to_string(machines.join("skylake-server.toml"))?;
    let core = toml::from_str::<Machine>(&machine)?.core.ok_or("the machine has no core")?;
    let mut predictors = PREDICTORS.map(|(name, branch_predictor)| {
        let core = flatwalk_timing::config::machine::Core { branch_predictor, ..core.clone() };
        (name, Predictor::new(&core), [0_u64; 3])
    });
    let mut source = flatwalk_trace::open(Path::new(&trace))?;
    let (mut decoder, mut blocks) = (BlockDecoder::default(), Vec::<DecodedBlock>::new());
    let (mut instructions, mut branches) = (0_u64, [0_u64; 3]);
    let (mut thread, mut before) = (None, None);
    while let Some(item) = source.next_item()? {
        let slice = match item {
            Item::Define { block, .. } => {
                blocks.push(decoder.decode(&block));
                continue;
            }
            Item::Event(_) => continue,
            Item::Slice(slice) => slice,
        };
        if thread.replace(slice.thread) != Some(slice.thread) {
            before = None;
        }
        for &id in &slice.blocks {
            let block = &blocks[id as usize];
            if let Some(last) = before.replace(id) {
                let last = &blocks[last as usize];
                let pc = last.ops[last.ops.len() - 1].pc;
                let kind = kind(last.control);
                for (_, predictor, wrong) in &mut predictors {
                    let right = predictor.predict(last.control, pc, last.fall_through, block.pc());
                    if let Some(kind) = kind {
                        wrong[kind] += u64::from(!right);
                    }
                }
                if let Some(kind) = kind {
                    branches[kind] += 1;
                }
            }
            instructions += block.ops.len() as u64;
        }
        if instructions >= limit {
            break;
        }
    }
    let row = |name: &str, counts: [u64; 3]| {
        let all: u64 = counts.iter().sum();
        let rate = all as f64 * 1000.0 / instructions.max(1) as f64;
        let [conditional, computed, returns] = counts;
        println!("{name:<17} {conditional:>12} {computed:>12} {returns:>12} {all:>12} {rate:>8.2}");
    };
    println!("{}: {instructions} instructions", source.info().name);
    let [conditional, computed, returns] = KINDS;
    println!("{:17} {conditional:>12} {computed:>12} {returns:>12} {:>12} /1000", "", "all");
    row("branches", branches);
    for (name, _, wrong) in predictors {
        row(name, wrong);
    }
    Ok(())
}
