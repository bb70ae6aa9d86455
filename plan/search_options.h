// How far the search for a plan goes, and what a small gain is worth: the planner's constants of taste. None
// changes what a plan means; each trades planning time for the chance of a better plan, or simplicity for
// speed. bench/plan varies them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::plan {

struct SearchOptions {
  // ---- where it looks ----

  // A row of more positions is made coarser: what a search takes grows with their square.
  uint32_t positions_max = 512;
  // Orders of devices are compared on a row of so few: which order is good does not hang on exact borders.
  // Where a number of stages is asked for, three times as many, so that borders can still differ.
  uint32_t coarse_positions = 32;
  // Numbers of stages up to this one are tried one by one, beyond it a quarter more each time: a stage more
  // matters less the more there are.
  uint32_t numbers_one_by_one = 8;
  uint32_t numbers_stride = 4;
  // The search ends after so many numbers of stages without a better plan: one more stage may be worse where
  // two more are better.
  uint32_t tries_in_vain = 4;
  // Where a model does not fit on as many stages as the coarse row has positions, more are tried up to here.
  uint32_t many_stages = 128;
  // So many sites, the strongest, are looked at by themselves: a search among all devices that stops when a
  // stage more brings nothing may never come to one of them.
  size_t sites_alone = 2;

  // ---- what is evaluated ----

  // Of the proposals for a number of stages so many are evaluated, and more for as long as all together take
  // no more work than this (Evaluator::work): estimates are good, and no more than that.
  size_t evaluated = 4;
  size_t evaluated_work = 8000;
  // A baseline beside the search is evaluated where its own estimate is at most so many times the best step:
  // estimates are never that far off.
  double hopeful = 1.5;
  // Of those, the fastest whose microbatches in flight are tuned.
  size_t refined = 2;

  // ---- small changes ----

  // Beside the best plan so many others, each the best of its kind, are changed a little: what is best may be
  // reached from what is not yet.
  size_t polished = 8;
  size_t starts_each = 2;       // of one number of stages, as a row or as a ring
  double nearly_as_good = 1.5;  // and at most so many times as slow as the best
  // The work that all these changes may take. A plan that takes no more than `small` to evaluate gets more of
  // it: there, every cut and every device can be looked at, and people compare it with what they see.
  size_t polish_work = 60'000;
  size_t small = 1'500;
  size_t polish_work_of_small = 300'000;
  // A walk astray from the best takes so many changes at once, and ends after so many walks in vain.
  int strayed = 3;
  int strays_in_vain = 60;

  // ---- what a gain is worth, as a part of the step without it ----

  double worth_a_stage = 0.98;    // one stage more is one device more that can fail
  double worth_a_piece = 0.99;    // a position out of the row makes a plan harder to read
  double worth_a_change = 0.999;  // less is noise of the prediction
  double worth_memory = 0.995;    // more microbatches in flight, or values kept instead of made again
  // Devices of one kind are enough at so much of the speed of all: then bits are equal.
  double worth_equal_bits = 0.9;
  // Of plans with several compressions the gentlest that takes at most so many times the fastest step.
  double nearly_as_fast = 1.05;
};

}  // namespace weft::plan
