//! Predictors on branches whose mispredictions can be computed by hand.

use super::*;

const ALL: [BranchPredictor; 3] =
    [BranchPredictor::Gshare, BranchPredictor::HashedPerceptron, BranchPredictor::TageScL];
const MODERN: [BranchPredictor; 2] = [BranchPredictor::HashedPerceptron, BranchPredictor::TageScL];

fn predictor(kind: BranchPredictor) -> Predictor {
    let mut core = crate::tests::testing::machine().core.unwrap();
    core.branch_predictor = kind;
    core.branch_history_bits = Some(14);
    Predictor::new(&core)
}

/// Outcomes that no history says anything about.
struct Random(u64);

impl Random {
    fn bit(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 40 & 1 == 1
    }
}

/// A conditional branch of two bytes at `pc` that goes 64 bytes back if it is taken; true if that was
/// predicted.
fn conditional(predictor: &mut Predictor, pc: u64, taken: bool) -> bool {
    let next = if taken { pc - 64 } else { pc + 2 };
    predictor.predict(Control::Conditional, pc, Some(pc + 2), next)
}

/// How many of `count` executions of one branch were mispredicted, after as many that were not counted.
fn wrong(kind: BranchPredictor, count: u64, mut outcome: impl FnMut(u64) -> bool) -> u64 {
    let mut predictor = predictor(kind);
    let mut run = |range: std::ops::Range<u64>| {
        range.filter(|&i| !conditional(&mut predictor, 0x40_1000, outcome(i))).count() as u64
    };
    run(0..count);
    run(count..2 * count)
}

#[test]
fn constants_and_short_patterns_are_learnt() {
    for kind in ALL {
        assert_eq!(wrong(kind, 1000, |_| true), 0, "{kind:?}");
        assert_eq!(wrong(kind, 1000, |_| false), 0, "{kind:?}");
        assert_eq!(wrong(kind, 1000, |i| i % 2 == 0), 0, "{kind:?}");
        assert!(wrong(kind, 2000, |i| 0b1011_0010 >> (i % 8) & 1 == 1) <= 2, "{kind:?}");
    }
}

#[test]
fn random_outcomes_are_mispredicted_half_of_the_time() {
    // 50,000 tosses: the standard deviation is 112, so that 600 is more than five of them.
    for kind in ALL {
        let mut random = Random(88_172_645_463_325_252);
        let wrong = wrong(kind, 50_000, |_| random.bit());
        assert!(wrong.abs_diff(25_000) < 600, "{kind:?}: {wrong}");
    }
}

#[test]
fn a_branch_that_follows_another_is_learnt_from_it() {
    for kind in ALL {
        let (mut predictor, mut random) = (predictor(kind), Random(7));
        let mut wrong = [0; 2];
        for i in 0..20_000 {
            let outcome = random.bit();
            let first = conditional(&mut predictor, 0x1000, outcome);
            let second = conditional(&mut predictor, 0x1010, !outcome);
            if i >= 10_000 {
                wrong[0] += u64::from(!first);
                wrong[1] += u64::from(!second);
            }
        }
        assert!(wrong[0] > 4_500 && wrong[1] < 30, "{kind:?}: {wrong:?}");
    }
}

#[test]
fn an_outcome_long_ago_is_remembered_by_those_that_look_so_far_back() {
    // The last of 61 branches goes as the first did; those in between are always taken.
    let wrong = |kind| {
        let (mut predictor, mut random) = (predictor(kind), Random(9));
        let mut wrong = 0;
        for i in 0..4_000 {
            let outcome = random.bit();
            conditional(&mut predictor, 0x1000, outcome);
            for step in 0..59 {
                conditional(&mut predictor, 0x2000 + step * 16, true);
            }
            wrong += u64::from(!conditional(&mut predictor, 0x9004, outcome) && i >= 2_000);
        }
        wrong
    };
    assert!(wrong(BranchPredictor::Gshare) > 800);
    for kind in MODERN {
        assert!(wrong(kind) < 20, "{kind:?}: {}", wrong(kind));
    }
}

#[test]
fn the_end_of_a_long_regular_loop_is_predicted_by_tage_sc_l_alone() {
    // 400 iterations, with a random branch in each, so that no history of outcomes repeats.
    let wrong = |kind| {
        let (mut predictor, mut random) = (predictor(kind), Random(3));
        let mut wrong = 0;
        for round in 0..400 {
            for iteration in 0..400 {
                conditional(&mut predictor, 0x1000, random.bit());
                let right = conditional(&mut predictor, 0x1040, iteration != 399);
                wrong += u64::from(!right && round >= 200);
            }
        }
        wrong
    };
    assert!(wrong(BranchPredictor::Gshare) >= 190);
    assert!(wrong(BranchPredictor::HashedPerceptron) >= 190);
    let tage = wrong(BranchPredictor::TageScL);
    assert!(tage <= 10, "{tage}");
}

#[test]
fn a_branch_with_a_bias_costs_tage_sc_l_little_more_than_the_rarer_outcome() {
    // One in eight, at random: nobody can do better than an eighth.
    let mut random = Random(11);
    let wrong = wrong(BranchPredictor::TageScL, 50_000, |_| {
        !(random.bit() && random.bit() && random.bit())
    });
    assert!((5_900..7_200).contains(&wrong), "{wrong}");
}

#[test]
fn the_same_branches_give_the_same_predictions() {
    for kind in ALL {
        let run = || {
            let (mut predictor, mut random) = (predictor(kind), Random(5));
            for i in 0..20_000_u64 {
                let pc = 0x1000 + (i * 37 % 300) * 4;
                conditional(&mut predictor, pc, random.bit() || i % 3 == 0);
                predictor.predict(Control::Jump, pc + 2, None, pc * 3);
            }
            predictor.statistics
        };
        assert_eq!(run(), run());
        let copied = {
            let mut first = predictor(kind);
            for i in 0..500 {
                conditional(&mut first, 0x1000, i % 3 == 0);
            }
            let mut second = first.clone();
            let go =
                |p: &mut Predictor| (0..99).map(|i| conditional(p, 0x1000, i % 7 == 0)).collect();
            let both: [Vec<bool>; 2] = [go(&mut first), go(&mut second)];
            both[0] == both[1]
        };
        assert!(copied, "{kind:?}");
    }
}

#[test]
fn the_hashed_perceptron_is_champsims() {
    // What ChampSim's own predictor (at 2ff25011) gets wrong of the same branches.
    let expected = (174_892, 38_643);
    let mut p = predictor(BranchPredictor::HashedPerceptron);
    let (mut random, mut history, mut branches) = (1_u64, 0_u64, 0_u64);
    for _ in 0..200_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pc = 0x40_0000 + (random >> 33) % 97 * 6;
        if (random >> 50).is_multiple_of(8) {
            p.predict(Control::Jump, pc, Some(pc + 2), 0);
            continue;
        }
        let taken = (history ^ pc >> 1) & 5 == 0 || random >> 60 == 0;
        conditional(&mut p, pc, taken);
        history = history << 1 | u64::from(taken);
        branches += 1;
    }
    assert_eq!((branches, p.statistics.mispredictions), expected);
}

#[test]
fn returns_go_back_to_their_calls() {
    for kind in ALL {
        let mut p = predictor(kind);
        for depth in 0..10u64 {
            p.predict(Control::Call, depth, Some(depth + 5), 0x9000);
        }
        for depth in (0..10u64).rev() {
            assert!(p.predict(Control::Return, 0x9000, None, depth + 5));
        }
    }
}

#[test]
fn a_branch_of_unknown_length_falls_through_to_a_near_place() {
    let mut p = predictor(BranchPredictor::Gshare);
    let mut wrong =
        |next| (0..100).filter(|_| !p.predict(Control::Conditional, 0x1000, None, next)).count();
    // What is always the same way is learnt at once, and forgotten when it changes.
    assert!(wrong(0x1006) <= 1);
    let changes = wrong(0x1010);
    assert!((2..40).contains(&changes), "{changes}");
    assert!(wrong(0x1000) <= 1, "it goes back to itself");
}

#[test]
fn perfect_is_never_wrong() {
    let mut p = predictor(BranchPredictor::Perfect);
    for i in 0..100 {
        assert!(p.predict(Control::IndirectJump, 0, None, i));
    }
    assert_eq!(p.statistics, BranchStatistics { branches: 100, mispredictions: 0 });
}
