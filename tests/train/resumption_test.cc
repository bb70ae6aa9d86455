// A run that goes on from a checkpoint is the run it was, or says what is not; and one whose end fails leaves
// a checkpoint that the trained file can be had from.
#include "train/resumption.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "peer/backend/cpu/cpu_backend.h"
#include "storage/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/trainer.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

using train::TrainOptions;

// Six steps of gpt3, of which a checkpoint holds four.
class Resumption : public testing::Test {
 protected:
  Resumption() {
    test::unpack_case("gpt3", scratch_.folder());
    run({"checkpoint={steps: 4}"}, {}, "first.onnx");
    checkpoint_ = scratch_.folder() / "first.onnx.checkpoints" / "checkpoint-4.json";
  }
  struct Outcome {
    Result<train::ResultEvent> result;
    std::string warnings;  // of the start, a line each
    uint64_t steps = 0;    // made
  };
  configs::Job job(std::vector<std::string> sets, const std::string& output) {
    sets.insert(sets.begin(), {"steps=6", "output=" + (scratch_.folder() / output).string()});
    auto loaded = configs::load_job(scratch_.folder() / "job.yaml", sets);
    if (!loaded) throw std::runtime_error(loaded.error().message);  // ends this test, not the others
    return std::move(*loaded);
  }
  Outcome run(
      const std::vector<std::string>& sets, const TrainOptions& options = {},
      const std::string& output = "out.onnx",
      const std::function<void(const train::Event&)>& see = [](const train::Event&) {}) {
    auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
    Outcome outcome{.result = train::ResultEvent{}, .warnings = {}};
    outcome.result = train::train(job(sets, output), **backend, options, [&](const train::Event& event) {
      if (const auto* start = std::get_if<train::StartEvent>(&event))
        for (const std::string& warning : start->warnings) outcome.warnings += warning + "\n";
      outcome.steps += std::holds_alternative<train::StepEvent>(event);
      see(event);
    });
    return outcome;
  }
  Outcome resume(const std::vector<std::string>& sets, bool other_data = false) {
    return run(sets, {.resume = checkpoint_, .other_data = other_data});
  }
  std::string bytes(const std::string& name) { return test::read_file(scratch_.folder() / name); }

  test::Scratch scratch_;
  fs::path checkpoint_;
};

TEST_F(Resumption, OfTheSameJobIsSilentAndEndsInTheSameBytes) {
  const Outcome same = resume({});
  ASSERT_TRUE(same.result.has_value()) << same.result.error().message;
  EXPECT_EQ(same.steps, 2u);
  EXPECT_EQ(same.warnings, "");
  EXPECT_EQ(bytes("out.onnx"), bytes("first.onnx"));
}

TEST_F(Resumption, SaysWhichKeysDiffer) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"seed=7", "`seed` was 0 and is 7"},
      {"shuffle=true", "`shuffle` was false and is true"},
      {"clip_norm=3", "`clip_norm` was "},
      {"on_divergence=skip", "`on_divergence` was stop and is skip"},
      {"optimizer.type=adam", "`optimizer.type` was adamw and is adam"},
      {"optimizer.betas=[0.8, 0.95]", "`optimizer.betas` was [0.9, 0.95] and is [0.8, 0.95]"},
      {"optimizer.weight_decay=0", "`optimizer.weight_decay` was 0.1 and is 0"},
      {"optimizer.epsilon=1e-3", "`optimizer.epsilon` was 1e-06 and is 0.001"},
      {"schedule.warmup_steps=2", "`schedule.warmup_steps` was 5 and is 2"},
      {"schedule.final=0.5", "`schedule.final` was 0.1 and is 0.5"},
  };
  for (const auto& [set, words] : changes) {
    const Outcome changed = resume({set});
    ASSERT_TRUE(changed.result.has_value()) << changed.result.error().message;
    EXPECT_NE(changed.warnings.find(words), std::string::npos) << set << ": " << changed.warnings;
    EXPECT_EQ(std::count(changed.warnings.begin(), changed.warnings.end(), '\n'), 1) << changed.warnings;
  }
}

// Where the rate depends on what changed, the two between which it may jump are said.
TEST_F(Resumption, SaysWhichRateFollows) {
  const Outcome constant = resume({"schedule=null", "optimizer.learning_rate=0.25"});
  EXPECT_NE(constant.warnings.find(
                "the learning rate was 0.0008 in the checkpoint's last step and is 0.25 in the next"),
            std::string::npos)
      << constant.warnings;
  const Outcome longer = resume({"steps=9"});
  EXPECT_NE(longer.warnings.find("`steps` was 6 and is 9"), std::string::npos) << longer.warnings;
  EXPECT_NE(longer.warnings.find("and is 0.001 in the next"), std::string::npos) << longer.warnings;
  EXPECT_EQ(resume({"seed=7"}).warnings.find("rate"), std::string::npos);
}

TEST_F(Resumption, WithOtherDataIsRefusedUnlessTold) {
  std::string other = bytes("data.npz");
  other[other.size() - 2] = 1;  // a comment of one byte: other bytes, the same arrays
  scratch_.write("data.npz", other + "x");
  const Outcome refused = resume({});
  ASSERT_FALSE(refused.result.has_value());
  EXPECT_EQ(refused.result.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.result.error().message.find("--other-data"), std::string::npos)
      << refused.result.error().message;
  EXPECT_EQ(refused.steps, 0u);
  const Outcome told = resume({}, /*other_data=*/true);
  ASSERT_TRUE(told.result.has_value()) << told.result.error().message;
  EXPECT_NE(told.warnings.find("the data of `data.train` are others"), std::string::npos) << told.warnings;
}

TEST_F(Resumption, PastTheEndIsRefusedAndAtTheEndOnlyWrites) {
  const Outcome past = resume({"steps=3"});
  ASSERT_FALSE(past.result.has_value());
  EXPECT_EQ(past.result.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(past.result.error().message.find("nothing is left to train"), std::string::npos)
      << past.result.error().message;
  const Outcome at = resume({"steps=4"});
  ASSERT_TRUE(at.result.has_value()) << at.result.error().message;
  EXPECT_EQ(at.steps, 0u);
  EXPECT_TRUE(fs::exists(at.result->output));
}

TEST_F(Resumption, FromAnOlderCheckpointSaysWhatItDoesNotTell) {
  storage::Files files;
  auto loaded = storage::load_checkpoint(checkpoint_, files);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  loaded->checkpoint.settings.reset();
  const auto writer = storage::CheckpointWriter::open(scratch_.folder() / "older", files);
  ASSERT_TRUE((*writer)->write(loaded->checkpoint).has_value());
  const Outcome older = run({}, {.resume = scratch_.folder() / "older"});
  ASSERT_TRUE(older.result.has_value()) << older.result.error().message;
  EXPECT_EQ(std::count(older.warnings.begin(), older.warnings.end(), '\n'), 1) << older.warnings;
  EXPECT_NE(older.warnings.find("older weft"), std::string::npos) << older.warnings;
  EXPECT_EQ(bytes("out.onnx"), bytes("first.onnx"));
}

// What a checkpoint names may not be plain: it says the hash of that.
TEST(RunSettings, NamesThatAreLongOrStrangeAreToldByTheirHash) {
  configs::Job job;
  job.inputs["x"] = std::string(5000, 'y');
  const auto settings = train::settings_of(job, 1, {}, 1);
  for (const auto& [key, value] : settings.values) EXPECT_LT(value.size(), 1000u) << key;
  job.inputs["x"] = "\xff";
  EXPECT_NE(train::settings_of(job, 1, {}, 1).values.at("inputs"), settings.values.at("inputs"));
  EXPECT_EQ(train::settings_of(job, 1, {}, 1).values.at("inputs").find('\xff'), std::string::npos);
}

// ---- a run whose end fails

// Once training is under way a folder takes the name that the output was to have.
TEST_F(Resumption, ATrainedFileThatCannotBeWrittenLeavesACheckpointThatGivesIt) {
  const fs::path taken = scratch_.folder() / "taken.onnx";
  std::string status;
  const Outcome lost = run({}, {}, "taken.onnx", [&](const train::Event& event) {
    if (std::holds_alternative<train::StepEvent>(event)) fs::create_directories(taken / "and not empty");
    if (const auto* result = std::get_if<train::ResultEvent>(&event))
      status = (result->failed ? "failed " : "") + result->checkpoint.string();
  });
  ASSERT_FALSE(lost.result.has_value());
  const std::string& message = lost.result.error().message;
  const fs::path kept = scratch_.folder() / "taken.onnx.checkpoints" / "checkpoint-6.json";
  EXPECT_NE(message.find("taken.onnx'"), std::string::npos) << message;
  EXPECT_NE(message.find("--resume " + kept.string()), std::string::npos) << message;
  EXPECT_EQ(status, "failed " + kept.string());
  const Outcome late = run({}, {.resume = kept});
  ASSERT_TRUE(late.result.has_value()) << late.result.error().message;
  EXPECT_EQ(late.steps, 0u);
  EXPECT_EQ(late.warnings, "");
  EXPECT_EQ(bytes("out.onnx"), bytes("first.onnx"));
}

// And where even that has no place beside the output, among temporary files.
TEST_F(Resumption, ACheckpointGoesElsewhereWhereThereIsNoPlaceBesideTheOutput) {
  const fs::path taken = scratch_.folder() / "taken.onnx", elsewhere = scratch_.folder() / "elsewhere";
  fs::create_directory(elsewhere);
  setenv("TMPDIR", elsewhere.c_str(), 1);
  const Outcome lost = run({}, {}, "taken.onnx", [&](const train::Event& event) {
    if (!std::holds_alternative<train::StepEvent>(event)) return;
    fs::create_directories(taken / "and not empty");
    scratch_.write("taken.onnx.checkpoints", "");
  });
  unsetenv("TMPDIR");
  ASSERT_FALSE(lost.result.has_value());
  const std::string& message = lost.result.error().message;
  const size_t at = message.find("--resume " + elsewhere.string());
  ASSERT_NE(at, std::string::npos) << message;
  const std::string path = message.substr(at + 9, message.find(' ', at + 9) - at - 9);
  const Outcome late = run({}, {.resume = path});
  ASSERT_TRUE(late.result.has_value()) << late.result.error().message;
  EXPECT_EQ(bytes("out.onnx"), bytes("first.onnx"));
}

TEST_F(Resumption, ACheckpointThatFailsNowAndThenEndsNoRun) {
  const fs::path folder = scratch_.folder() / "out.onnx.checkpoints";
  std::vector<uint64_t> warned, written;
  const Outcome whole = run({"checkpoint={steps: 1}"}, {}, "out.onnx", [&](const train::Event& event) {
    if (const auto* step = std::get_if<train::StepEvent>(&event)) {
      if (step->step == 2) fs::rename(folder, scratch_.folder() / "away");
      if (step->step == 2) scratch_.write("out.onnx.checkpoints", "");
      if (step->step == 4) fs::remove(folder);
    }
    if (const auto* warning = std::get_if<train::WarningEvent>(&event)) warned.push_back(warning->after_step);
    if (const auto* checkpoint = std::get_if<train::CheckpointEvent>(&event))
      written.push_back(checkpoint->after_step);
  });
  ASSERT_TRUE(whole.result.has_value()) << whole.result.error().message;
  EXPECT_EQ(warned, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(written, (std::vector<uint64_t>{1, 4, 5, 6}));
  EXPECT_EQ(bytes("out.onnx"), bytes("first.onnx"));
}

}  // namespace
}  // namespace weft
