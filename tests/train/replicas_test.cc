// Replicas with local steps on one machine: what has to be the same as training without them is, a run's
// record makes its bytes again, and a run that was stopped goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>

#include "base/rng.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "storage/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/train/local_replicas.h"
#include "train/beginning.h"
#include "train/outer_record.h"
#include "train/prepare.h"
#include "train/trainer.h"

namespace weft {
namespace {

using replicas::OuterRound;

using test::kCompressed;
using test::kFragments;
using test::kOverlapping;
using test::kSgd;
using test::kShares;
using test::one_cpu;
class Replicas : public test::LocalReplicas {};

// Nesterov carries weights past what averaged statistics are of, and a line says so.
TEST_F(Replicas, AreToldThatAveragedStatisticsLagBehindNesterov) {
  const auto said = [&](const char* name, const char* sync) {
    const Run made = run(job(name, {"steps=4", "replicas=2", sync}, "said.onnx"));
    return std::count_if(made.warnings.begin(), made.warnings.end(), [](const std::string& warning) {
      return warning.find("`outer: {type: average}` both") != std::string::npos;
    });
  };
  EXPECT_EQ(said("resnet_small", "sync={every: 2}"), 1);
  EXPECT_EQ(said("resnet_small", "sync={every: 2, outer: {type: average}}"), 0);
  EXPECT_EQ(said("gpt3", "sync={every: 2}"), 0) << "it has none";
}

// The mean of what two replicas learn in one step of 8 samples is what one learns in a step of 16.
TEST_F(Replicas, ThatAverageAfterEachStepAreOneLargerBatch) {
  const std::vector<std::string> common{kSgd, "clip_norm=null", "schedule=null"};
  auto sets = common;
  sets.insert(sets.end(), {"batch_size=8", "microbatch_size=8", "steps=12", "replicas=2",
                           "sync={every: 1, outer: {type: average}}"});
  const auto apart = job("gpt3", sets, "apart.onnx");
  sets = common;
  sets.insert(sets.end(), {"batch_size=16", "microbatch_size=8", "steps=6"});
  const auto together = job("gpt3", sets, "together.onnx");
  EXPECT_EQ(run(apart).agreements.size(), 6u);
  run(together);
  EXPECT_LT(difference(apart, together), 2e-5);
}

// Its optimizer goes on over the borders of rounds, whatever these are.
TEST_F(Replicas, OneThatAveragesIsAPlainRun) {
  for (const char* name : {"gpt3", "resnet_small"}) {
    const auto plain = job(name, {"steps=10"}, std::string(name) + "plain.onnx");
    const auto rounds =
        job(name, {"steps=10", "sync={every: 3, outer: {type: average}}"}, std::string(name) + "rounds.onnx");
    const Run expected = run(plain), got = run(rounds);
    EXPECT_EQ(got.agreements.size(), 4u);
    EXPECT_EQ(got.agreements.back().steps, (std::vector<uint64_t>{1}));
    ASSERT_EQ(got.steps.size(), expected.steps.size());
    for (size_t i = 0; i < got.steps.size(); ++i) {
      EXPECT_EQ(got.steps[i].step, expected.steps[i].step);
      EXPECT_EQ(got.steps[i].learning_rate, expected.steps[i].learning_rate);
      EXPECT_NEAR(got.steps[i].loss, expected.steps[i].loss, 1e-4 * std::abs(expected.steps[i].loss));
    }
    EXPECT_LT(difference(plain, rounds), 1e-4) << name;
  }
}

TEST_F(Replicas, ThatAgreeOnEachStepHaveTheBytesOfTheirRanges) {
  const std::vector<std::string> common{"batch_size=16", "microbatch_size=4", "steps=4"};
  auto sets = common;
  sets.emplace_back("replicas=2");
  const std::string exact = run(job("gpt3", sets, "exact.onnx")).bytes;
  sets.back() = "gradient_ranges=2";
  ASSERT_FALSE(exact.empty());
  EXPECT_TRUE(exact == run(job("gpt3", sets, "ranges.onnx")).bytes);
}

TEST_F(Replicas, GiveTheSameBytesFromAnyNumberOfThreads) {
  for (const char* name : {"gpt3", "resnet_small"}) {
    const auto compressed = job(name, {"steps=14", "replicas=3", kCompressed}, "threads.onnx");
    const Run once = run(compressed);
    ASSERT_FALSE(once.bytes.empty());
    EXPECT_EQ(once.agreements.size(), 2u);
    EXPECT_EQ(once.agreements.back().steps, (std::vector<uint64_t>{2, 2, 1}));
    EXPECT_LT(once.agreements.front().sent_bytes, once.agreements.front().dense_bytes * 3 / 10);
    EXPECT_TRUE(once.bytes == run(compressed, {}, 0, 2).bytes) << name;
  }
}

// From a checkpoint between two rounds it is the run that it was; and its record makes it again.
TEST_F(Replicas, GoOnFromACheckpointToTheSameBytes) {
  for (const char* sync : {kCompressed, "sync={every: 3}"}) {
    const auto whole = job("gpt3", {"steps=20", "replicas=2", sync}, "whole.onnx");
    const auto parts = job("gpt3", {"steps=20", "replicas=2", sync, "checkpoint={steps: 11}"}, "parts.onnx");
    const std::string bytes = run(whole).bytes;
    EXPECT_TRUE(bytes == run(parts).bytes);
    std::filesystem::remove(parts.output);
    const Run resumed = run(parts, {.resume = train::checkpoint_folder(parts)});
    ASSERT_FALSE(resumed.steps.empty());
    EXPECT_EQ(resumed.steps.front().step, 13u) << "that after the first agreement after step 11";
    EXPECT_TRUE(bytes == resumed.bytes);
    const auto record = storage::read_outer_record(train::record_file(parts));
    ASSERT_TRUE(record.has_value()) << record.error().message;
    EXPECT_EQ(record->rounds.back(), (OuterRound{.steps_before = 18, .steps = {1, 1}, .side_by_side = 2}));
    EXPECT_EQ(record->rounds.size(), 4u) << "each once, also those from before";
  }
}

// A stop ends the round early: nothing is lost, and the record says what was.
TEST_F(Replicas, AreStoppedAtAnyStepAndTheirRecordMakesTheBytesAgain) {
  const std::vector<std::pair<const char*, std::vector<uint64_t>>> cases{
      {kShares, {4, 6, 8, 10}},
      {kCompressed, {1}},
      {kOverlapping, {5, 7, 11}},
      {kFragments, {3, 6, 9, 10}},
  };
  for (const auto& [sync, stops_in] : cases)
    for (const uint64_t stop_in : stops_in) {
      SCOPED_TRACE(std::string(sync) + ", stopped in " + std::to_string(stop_in));
      const std::string name = "stopped" + std::to_string(stop_in) + ".onnx";
      const auto stops = job("gpt3", {"steps=13", "replicas=2", sync}, name);
      EXPECT_TRUE(run(stops, {}, stop_in).bytes.empty());
      const Run rest = run(stops, {.resume = train::checkpoint_folder(stops)});
      EXPECT_EQ(rest.steps.front().step, stop_in + 1);
      ASSERT_FALSE(rest.bytes.empty());
      const auto record = train::record_file(stops);
      const auto again = job("gpt3", {"steps=13", "replicas=2", sync}, "again" + name);
      EXPECT_TRUE(rest.bytes == run(again, {.resume = {}, .replay = record}).bytes);
      EXPECT_EQ(test::read_file(record), test::read_file(train::record_file(again)));
    }
}

// It goes on from where the mean of its own difference alone will put it.
TEST_F(Replicas, OneWhoseRoundsOverlapIsOneThatWaitsForThem) {
  for (const char* outer : {"nesterov", "average"}) {
    const std::string every = std::string("every: 2, outer: {type: ") + outer + "}";
    const auto waits = job("gpt3", {"steps=13", "sync={" + every + "}"}, "waits.onnx");
    const auto overlaps = job("gpt3", {"steps=13", "sync={" + every + ", overlap: true}"}, "overlaps.onnx");
    EXPECT_TRUE(run(waits).bytes == run(overlaps).bytes) << outer;
  }
}

// Alone it has nothing to learn from others, whenever it agrees with itself.
TEST_F(Replicas, OneThatAgreesAboutAFragmentAtATimeIsAPlainRun) {
  const auto plain = job("gpt3", {"steps=13"}, "plain.onnx");
  const auto in_turn =
      job("gpt3", {"steps=13", "sync={every: 3, outer: {type: average}, overlap: true, fragments: 3}"},
          "turn.onnx");
  const Run expected = run(plain), got = run(in_turn);
  EXPECT_EQ(got.agreements.size(), 13u);
  EXPECT_LT(difference(plain, in_turn), 1e-4);
}

// What is learnt of a fragment counts once, and not before it was agreed about.
TEST_F(Replicas, AgreeAboutEachFragmentInTurn) {
  const auto whole = job("gpt3", {"steps=24", "replicas=2", "sync={every: 4, overlap: true}"}, "whole.onnx");
  const auto parts =
      job("gpt3", {"steps=24", "replicas=2", "sync={every: 4, overlap: true, fragments: 4}"}, "parts.onnx");
  const Run once = run(whole), in_turn = run(parts);
  ASSERT_EQ(once.agreements.size(), 3u);
  ASSERT_EQ(in_turn.agreements.size(), 12u);
  uint64_t bytes = 0;
  for (size_t i = 0; i < 4; ++i) bytes += in_turn.agreements[i].sent_bytes;
  EXPECT_EQ(bytes, once.agreements.front().sent_bytes) << "all of the model, in four rounds";
  EXPECT_EQ(in_turn.agreements.back().sent_bytes, once.agreements.back().sent_bytes)
      << "the last is about all";
  const auto record = storage::read_outer_record(train::record_file(parts));
  ASSERT_TRUE(record.has_value()) << record.error().message;
  for (size_t i = 0; i < 11; ++i) EXPECT_EQ(record->rounds[i].fragment, i % 4);
  EXPECT_EQ(record->sync.find("{every: 4, overlap: true, settle_every: 4, fragments: 4,"), 0u)
      << record->sync;
  EXPECT_LT(difference(whole, parts), 0.1) << "they learn the same, a little apart";
  EXPECT_FALSE(once.bytes == in_turn.bytes);
}

// Evaluations and checkpoints are of weights that all have.
TEST_F(Replicas, WhoseRoundsOverlapAreLookedAtWhereTheyHaveTheSameWeights) {
  const auto two = job("gpt3", {"steps=26", "replicas=2", kOverlapping, "checkpoint={steps: 5}"}, "two.onnx");
  const Run whole = run(two);
  EXPECT_EQ(whole.agreements.size(), 7u);
  const auto record = storage::read_outer_record(train::record_file(two));
  ASSERT_TRUE(record.has_value()) << record.error().message;
  std::vector<bool> overlaps;
  for (const OuterRound& round : record->rounds) overlaps.push_back(round.overlaps);
  EXPECT_EQ(overlaps, (std::vector<bool>{true, true, false, true, true, false, false}));
  EXPECT_EQ(whole.checkpoints, (std::vector<uint64_t>{12, 24, 26}));
  EXPECT_FALSE(
      whole.bytes ==
      run(job("gpt3", {"steps=26", "replicas=2", "sync={every: 2, codec: int8}"}, "other.onnx")).bytes);
}

TEST_F(Replicas, SkipWhatIsNotFiniteEachWithItsOwnCountOfUpdates) {
  const auto wild = job("gpt3",
                        {"steps=12", "replicas=3", "sync={every: 2}", "on_divergence=skip",
                         "checkpoint={steps: 6}", "optimizer={type: adamw, learning_rate: 0.01}"},
                        "skips.onnx");
  EXPECT_FALSE(run(wild).bytes.empty());
  storage::Files files;
  const auto loaded = storage::load_checkpoint(train::checkpoint_folder(wild), files);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(loaded->checkpoint.replica_updates, (std::vector<uint64_t>{4, 4, 4}));
}

TEST_F(Replicas, OfAnotherNumberGoOnWithTheStateOfTheFirstAndSaySo) {
  const std::vector<std::string> common{"steps=24", kCompressed, "checkpoint={steps: 12}"};
  auto sets = common;
  sets.emplace_back("replicas=2");
  const auto two = job("gpt3", sets, "two.onnx");
  run(two, {}, 12);
  const auto said = [](const Run& run, const char* words) {
    return std::any_of(run.warnings.begin(), run.warnings.end(),
                       [&](const std::string& text) { return text.find(words) != std::string::npos; });
  };
  sets.back() = "replicas=3";
  const Run three = run(job("gpt3", sets, "three.onnx"), {.resume = train::checkpoint_folder(two)});
  EXPECT_FALSE(three.bytes.empty());
  EXPECT_TRUE(said(three,
                   "of 2 replicas, and the job has 3: further ones go on with that of the "
                   "first, and owe nothing"));
  EXPECT_TRUE(said(three, "`replicas` was 2 and is 3"));
  const Run plain = run(job("gpt3", {"steps=24"}, "plain.onnx"), {.resume = train::checkpoint_folder(two)});
  EXPECT_FALSE(plain.bytes.empty());
  EXPECT_TRUE(said(plain, "of 2 replicas: this run goes on with that of the first"));
}

// A job that is submitted begins there with all that each of them has.
TEST_F(Replicas, BeginASubmittedJobWhereTheyWere) {
  std::vector<std::string> sets{"steps=24", kCompressed, "checkpoint={steps: 12}", "replicas=2"};
  const auto two = job("gpt3", sets, "two.onnx");
  run(two, {}, 12);
  const auto folder = train::checkpoint_folder(two);
  storage::Files files;
  const auto loaded = storage::load_checkpoint(folder, files);
  ASSERT_TRUE(loaded.has_value());
  const auto beginning = [&](const std::string& replicas) {
    sets.back() = replicas;
    const auto begun = job("gpt3", sets, "begun.onnx");
    const auto model = onnx::read_model(begun.model);
    const auto data = data::open_dataset(*begun.train);
    if (!model || !data) throw std::runtime_error("the case is not there");
    const auto prepared = train::prepare_training(begun, *model, **data, peer::evaluate_reference);
    if (!prepared) throw std::runtime_error(prepared.error().message);
    auto read = train::read_beginning({.checkpoint = folder}, begun, *prepared, 24);
    if (!read) throw std::runtime_error(read.error().message);
    return std::move(*read);
  };
  const train::Beginning same = beginning("replicas=2");
  EXPECT_TRUE(std::none_of(same.warnings.begin(), same.warnings.end(), [](const std::string& text) {
    return text.find("optimizer's state") != std::string::npos;
  }));
  ASSERT_EQ(same.replica_skipped_steps.size(), 2u);
  for (size_t r = 0; r < 2; ++r)
    EXPECT_EQ(same.replica_skipped_steps[r], same.step - loaded->checkpoint.replica_updates[r]);
  EXPECT_EQ(same.tensors.size(), loaded->checkpoint.tensors.size()) << "all that `weft local` goes on with";
  const auto said = [](const train::Beginning& begun, const char* words) {
    return std::any_of(begun.warnings.begin(), begun.warnings.end(),
                       [&](const std::string& text) { return text.find(words) != std::string::npos; });
  };
  // A third one has nothing of its own there: the broker gives it what the first has.
  const train::Beginning more = beginning("replicas=3");
  EXPECT_EQ(more.replica_skipped_steps, same.replica_skipped_steps);
  EXPECT_EQ(more.skipped_steps, same.replica_skipped_steps[0]);
  EXPECT_EQ(more.tensors.size(), same.tensors.size());
  EXPECT_TRUE(said(more, "of 2 replicas, and the job has 3: further ones go on with that of the first"));
  const train::Beginning fewer = beginning("replicas=1");
  EXPECT_EQ(fewer.replica_skipped_steps.size(), 1u);
  EXPECT_TRUE(
      said(fewer, "of 2 replicas, and the job has 1: that of others, and what they owed, is left out"));
  for (const auto& tensor : fewer.tensors) EXPECT_EQ(tensor.key.replica, 0u);
  const train::Beginning open = beginning("replicas=auto");
  EXPECT_EQ(open.tensors.size(), same.tensors.size());
  EXPECT_FALSE(said(open, "optimizer's state"));
}

// Two replicas, then four, then one, then two again: from the start, and over a checkpoint on the way.
TEST_F(Replicas, ComeAndGoAsARecordSays) {
  const auto begun = [&](std::vector<std::string> sets, const char* output) {
    sets.insert(sets.end(), {"replicas=auto", "steps=30", kCompressed});
    return job("gpt3", sets, output);
  };
  const configs::Job grows = begun({}, "grows.onnx");
  std::vector<replicas::Begun> plans;
  for (const auto& [count, after] : {std::pair{2u, 0u}, {4u, 6u}, {1u, 18u}, {2u, 24u}}) {
    replicas::LocalSteps plan{.terms = grows.replicas, .steps = 30, .begun_after = after};
    plan.terms.count = count;
    plan.terms.every = 3;
    plans.push_back({plan, {}});
  }
  plans[2].inherited = {.sets = {2, 1, 2, 3}, .debtless = {0, 1}, .returns_are_lost = true};
  const auto record = scratch_.folder() / "plans.jsonl";
  {
    storage::OuterRecordWriter writer;
    ASSERT_TRUE(writer.begin(record, train::record_of(grows, plans, 30)));
  }
  const auto read = storage::read_outer_record(record);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->replicas, 0u);
  ASSERT_EQ(read->rounds.size(), 5u);
  EXPECT_EQ(read->rounds[1].steps, (std::vector<uint64_t>{3, 3, 3, 3}));
  const Run whole = run(grows, {.resume = {}, .replay = record});
  const auto made = storage::read_outer_record(train::record_file(grows));
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ(made->rounds, read->rounds);
  for (const uint64_t at : {6, 18, 24}) {
    const configs::Job halves =
        begun({"checkpoint={steps: " + std::to_string(at) + "}"}, ("at" + std::to_string(at)).c_str());
    run(halves, {.resume = {}, .replay = record}, at);
    const Run rest = run(halves, {.resume = train::checkpoint_folder(halves), .replay = record});
    EXPECT_TRUE(rest.bytes == whole.bytes) << "over the checkpoint after step " << at;
  }
  const Run alone = run(begun({}, "alone.onnx"));
  EXPECT_FALSE(alone.bytes == whole.bytes);
}

// What the broker chose of rounds that a job leaves open stands in the record, and makes the bytes of a job
// that names it.
TEST_F(Replicas, AsARecordSaysOfRoundsThatAJobLeavesOpen) {
  const configs::Job open =
      job("gpt3", {"replicas=2", "steps=12", "sync={every: {min: 2, max: 6}, codec: auto}"}, "open.onnx");
  replicas::LocalSteps plan{.terms = open.replicas, .steps = 12};
  plan.terms.every = 3;
  plan.terms.codec = compress::parse("topk:0.02:int4").value();
  const auto record = scratch_.folder() / "chosen.jsonl";
  storage::OuterRecordWriter writer;
  ASSERT_TRUE(writer.begin(record, train::record_of(open, {{plan, {}}}, 12)));
  const Run replayed = run(open, {.resume = {}, .replay = record});
  const Run named = run(
      job("gpt3", {"replicas=2", "steps=12", "sync={every: 3, codec: \"topk:0.02:int4\"}"}, "named.onnx"));
  EXPECT_TRUE(replayed.bytes == named.bytes);
  EXPECT_FALSE(run(open).bytes == named.bytes) << "by itself it takes the fewest, and int4";
}

// Three replicas, of which one was left out of the second round; two go on, and make its steps again. By the
// whole record; by what was known after that round; and over a checkpoint there.
TEST_F(Replicas, MakeAgainWhatALostOneHadMade) {
  const auto begun = [&](std::vector<std::string> sets, const char* output) {
    sets.insert(sets.end(), {"replicas=auto", "steps=30", kCompressed});
    return job("gpt3", sets, output);
  };
  const configs::Job grows = begun({}, "left_out.onnx");
  replicas::LocalSteps three{.terms = grows.replicas, .steps = 30};
  three.terms.count = 3;
  three.terms.every = 3;
  replicas::LocalSteps two = three;
  two.terms.count = 2;
  two.begun_after = 15;
  two.given_again = without(three, 6, {1}).given_again;
  ASSERT_EQ(two.given_again, (std::vector<replicas::StepRange>{{13, 3}}));
  const std::vector<replicas::Begun> plans{{three, {}},
                                           {two, {.sets = {0, 0, 2}, .debtless = {1}, .left_out = {1}}}};
  const auto record_until = [&](uint64_t until) {
    const auto record = scratch_.folder() / ("until" + std::to_string(until) + ".jsonl");
    storage::OuterRecordWriter writer;
    EXPECT_TRUE(writer.begin(record, train::record_of(grows, plans, until)));
    const auto read = storage::read_outer_record(record);
    EXPECT_TRUE(read.has_value()) << read.error().message;
    EXPECT_TRUE(read->rounds == rounds_of(plans, until));
    return record;
  };
  const auto whole = record_until(30);
  EXPECT_EQ(storage::read_outer_record(whole)->rounds[1].taken,
            (std::vector<replicas::StepRange>{{10, 3}, {16, 3}}));
  const Run made = run(grows, {.resume = {}, .replay = whole});
  EXPECT_TRUE(storage::read_outer_record(train::record_file(grows))->rounds == rounds_of(plans, 30));
  run(grows, {.resume = {}, .replay = record_until(15)});
  const auto by_rule = storage::read_outer_record(train::record_file(grows))->rounds;
  EXPECT_TRUE(given_again_after(by_rule).empty());
  EXPECT_EQ(by_rule.back().steps_after(), 30u);
  const configs::Job halves = begun({"checkpoint={steps: 15}"}, "at15.onnx");
  run(halves, {.resume = {}, .replay = whole}, 15);
  const Run rest = run(halves, {.resume = train::checkpoint_folder(halves), .replay = whole});
  EXPECT_TRUE(rest.bytes == made.bytes) << "over the checkpoint after the round without it";
}

TEST_F(Replicas, AreRefusedARecordThatIsNotTheirs) {
  const auto made = job("gpt3", {"steps=6", "replicas=2", kCompressed}, "made.onnx");
  run(made);
  const auto refused = [&](const configs::Job& other, const std::filesystem::path& record) {
    const auto backend = one_cpu();
    const auto result =
        train::train(other, *backend, {.resume = {}, .replay = record}, [](const train::Event&) {});
    return result ? std::string() : result.error().message;
  };
  const auto record = train::record_file(made);
  const auto with = [&](std::vector<std::string> sets) { return job("gpt3", std::move(sets), "other.onnx"); };
  EXPECT_NE(refused(with({"steps=6"}), record).find("this job has none"), std::string::npos);
  EXPECT_NE(refused(with({"steps=6", "replicas=3", kCompressed}), record).find("`replicas` was 2 and is 3"),
            std::string::npos);
  EXPECT_NE(refused(with({"steps=6", "replicas=2", "sync={every: 4}"}), record).find("`sync` was"),
            std::string::npos);
  EXPECT_NE(refused(with({"steps=6", "replicas=2", kCompressed, "seed=77"}), record).find("`seed` was"),
            std::string::npos);
  EXPECT_NE(refused(with({"steps=5", "replicas=2", kCompressed}), record).find("has 6 steps, and the job 5"),
            std::string::npos);
  EXPECT_NE(refused(made, scratch_.folder() / "none.jsonl").find("none.jsonl"), std::string::npos);
}

TEST_F(Replicas, AreRefusedARecordOfFragmentsThatTheyHaveNot) {
  const auto made = job("gpt3", {"steps=20", "replicas=2", kFragments}, "made.onnx");
  run(made);
  const std::string whole = test::read_file(train::record_file(made));
  const auto path = scratch_.folder() / "fragments.jsonl";
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    std::ofstream(path, std::ios::binary) << changed.replace(changed.find(from), from.size(), to);
    const auto record = train::read_record_of(
        path, made, storage::read_outer_record(path).value_or(storage::OuterRecord{}).graph_hash, 20);
    return record ? std::string() : record.error().message;
  };
  EXPECT_EQ(refused("\"fragment\":1", "\"fragment\":1"), "");
  EXPECT_NE(refused("\"fragment\":1", "\"fragment\":2").find("is about fragment 3, and the job has 2"),
            std::string::npos);
  EXPECT_NE(refused("\"fragment\":1", "\"fragment\":64").find("not a record of rounds"), std::string::npos);
  EXPECT_NE(refused("\"fragment\":1", "\"fragment\":-1").find("not a record of rounds"), std::string::npos);
  EXPECT_NE(refused("\"fragment\":1", "\"absent\":[1,0]").find("not a record of rounds"), std::string::npos);
  for (const char* absent : {"[0]", "[0,1]", "[2]", "1"})
    EXPECT_NE(refused("\"fragment\":1", std::string("\"absent\":") + absent).find("not a record of rounds"),
              std::string::npos)
        << "a mean of nobody: " << absent;
}

TEST_F(Replicas, ADamagedRecordIsAnErrorWithItsLine) {
  const auto made = job("gpt3", {"steps=9", "replicas=2", "sync={every: 3, shares: [3, 3]}"}, "made.onnx");
  run(made);
  const std::string whole = test::read_file(train::record_file(made));
  const auto path = scratch_.folder() / "damaged.jsonl";
  const auto read = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return storage::read_outer_record(path);
  };
  ASSERT_TRUE(read(whole).has_value());
  EXPECT_EQ(read(whole)->rounds.size(), 2u);
  EXPECT_EQ(read(whole + "{\"steps_bef")->rounds.size(), 2u) << "half a line is none";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("{}\n"), with("weft-rounds", "weft-cubes"),
        with("\"format\":1", "\"format\":2"), with("\"replicas\":2", "\"replicas\":0"),
        with("\"replicas\":2", "\"replicas\":3"), with("\"steps\":[3,3]", "\"steps\":[3]"),
        with("\"steps\":[3,3]", "\"steps\":[0,0]"),
        with("\"steps\":[3,3]", "\"steps\":[18446744073709551615,3]"),
        with("\"steps\":[3,3]", "\"steps\":[-1,3]"), with("\"side_by_side\":2", "\"side_by_side\":3"),
        with("\"dealt\":[3,3]", "\"dealt\":[3]"), with("\"dealt\":[3,3]", "\"dealt\":[3,2]"),
        with("\"dealt\":[3,3]", "\"dealt\":[3,3000000000]"), with("\"dealt\":[3,3]", "\"dealt\":3"),
        with("\"steps_before\":6", "\"steps_before\":5")}) {
    const auto record = read(text);
    ASSERT_FALSE(record.has_value()) << text;
    EXPECT_EQ(record.error().code, ErrorCode::Corrupted) << record.error().message;
  }
  // Any byte of it may be another: an error or a record, and nothing else.
  Rng rng(38, 1);
  for (int i = 0; i < 500; ++i) {
    std::string mutated = whole;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n)
      mutated[rng.below(mutated.size())] = static_cast<char>(rng.below(256));
    const auto record = read(mutated);
    for (const OuterRound& round : record ? record->rounds : std::vector<OuterRound>{})
      EXPECT_TRUE(round.steps_after() > round.steps_before) << mutated;
  }
}

}  // namespace
}  // namespace weft
