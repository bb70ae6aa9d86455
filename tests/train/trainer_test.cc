// The trainer's promises: the same bytes again, from any number of threads, and after stopping and resuming;
// clear errors before anything starts.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>

#include "configs/job.h"
#include "dag/onnx/model.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/support/poison.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {
namespace {

std::unique_ptr<peer::Backend> cpu(int threads) {
  auto backend = peer::make_cpu_backend({.threads = threads, .pin = false});
  if (!backend) ADD_FAILURE() << backend.error().message;
  return std::move(*backend);
}

class Trainer : public testing::Test {
 protected:
  configs::Job job(const std::string& name, const std::vector<std::string>& sets) {
    const auto folder = scratch_.folder() / name;
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directories(folder);
      test::unpack_case(name, folder);
    }
    auto loaded = configs::load_job(folder / "job.yaml", sets);
    if (!loaded) throw std::runtime_error(loaded.error().message);  // ends this test, not the others
    return std::move(*loaded);
  }
  std::string trained_bytes(const configs::Job& job, peer::Backend& backend,
                            const train::TrainOptions& options = {}) {
    const auto result = train::train(job, backend, options, [](const train::Event&) {});
    if (!result) {
      ADD_FAILURE() << result.error().message;
      return {};
    }
    return result->stopped ? std::string() : test::read_file(result->output);
  }
  std::string output(const std::string& name) { return "output=" + (scratch_.folder() / name).string(); }

  test::Scratch scratch_;
};

TEST_F(Trainer, GivesTheSameBytesFromAnyNumberOfThreads) {
  for (const char* name : {"resnet_small", "gpt3"}) {
    const std::string once = trained_bytes(job(name, {"steps=4", output("a.onnx")}), *cpu(1));
    ASSERT_FALSE(once.empty());
    EXPECT_EQ(once, trained_bytes(job(name, {"steps=4", output("b.onnx")}), *cpu(1))) << name << ": two runs";
    EXPECT_EQ(once, trained_bytes(job(name, {"steps=4", output("c.onnx")}), *cpu(2)))
        << name << ": two threads";
    EXPECT_EQ(once, trained_bytes(job(name, {"steps=4", output("d.onnx")}), *cpu(3)))
        << name << ": three threads";
  }
}

TEST_F(Trainer, ResumesToTheSameBytes) {
  for (const char* name : {"resnet_small", "gpt3"}) {
    const auto whole_job = job(name, {"steps=6", "shuffle=true", output(std::string(name) + "whole.onnx")});
    const auto parts_job = job(
        name, {"steps=6", "shuffle=true", "checkpoint={steps: 2}", output(std::string(name) + "parts.onnx")});
    const std::string whole = trained_bytes(whole_job, *cpu(2));
    // Asked to stop from within the third step's event: the step ends, a checkpoint is written, the run
    // returns.
    std::atomic<bool> stop{false};
    auto backend = cpu(2);
    const auto stopped =
        train::train(parts_job, *backend, {.resume = {}, .stop = &stop}, [&](const train::Event& event) {
          if (const auto* step = std::get_if<train::StepEvent>(&event); step != nullptr && step->step == 3)
            stop = true;
        });
    ASSERT_TRUE(stopped.has_value()) << stopped.error().message;
    EXPECT_TRUE(stopped->stopped);
    EXPECT_EQ(stopped->steps, 3u);
    ASSERT_FALSE(stopped->checkpoint.empty());
    EXPECT_FALSE(std::filesystem::exists(parts_job.output));
    EXPECT_EQ(whole, trained_bytes(parts_job, *cpu(1), {.resume = train::checkpoint_folder(parts_job)}))
        << name;
  }
}

// A sample that is not fit to be learnt from comes once an epoch, in steps 5, 9, 14 and 18: file order, 72
// samples, 16 a step.
class SkippedSteps : public Trainer {
 protected:
  configs::Job poisoned(float value, const std::vector<std::string>& sets) {
    std::vector<std::string> all{"on_divergence=skip", "optimizer={type: adamw, learning_rate: 0.003}"};
    all.insert(all.end(), sets.begin(), sets.end());
    job("resnet_small", {});
    const auto poison =
        test::poison_sample(scratch_.folder() / "resnet_small" / "data.npz", "image", 71, value);
    EXPECT_TRUE(poison.has_value()) << poison.error().message;
    return job("resnet_small", all);
  }
  static std::vector<uint64_t> skipped(const configs::Job& job, const train::TrainOptions& options = {}) {
    std::vector<uint64_t> steps;
    const auto result = train::train(job, *cpu(1), options, [&](const train::Event& event) {
      const auto* step = std::get_if<train::StepEvent>(&event);
      if (step == nullptr) return;
      EXPECT_EQ(step->skipped, std::isnan(step->loss));
      if (step->skipped) steps.push_back(step->step);
    });
    EXPECT_TRUE(result.has_value() && result->diverged.empty());
    return steps;
  }
  static void expect_finite(const configs::Job& job) {
    const auto model = onnx::read_model(job.output);
    ASSERT_TRUE(model.has_value()) << model.error().message;
    for (const auto& [name, tensor] : model->weights()) {
      if (!is_float(tensor.dtype())) continue;
      for (const double number : to_doubles(tensor)) ASSERT_TRUE(std::isfinite(number)) << name;
    }
  }
};

TEST_F(SkippedSteps, LeaveNothingBehind) {
  for (const float value : {std::nanf(""), 1e30f}) {
    SCOPED_TRACE(value);
    const auto whole = poisoned(value, {"steps=10", output("whole.onnx")});
    EXPECT_EQ(skipped(whole), (std::vector<uint64_t>{5, 9}));
    expect_finite(whole);
  }
}

TEST_F(SkippedSteps, AreCountedAcrossAResumption) {
  const auto whole = poisoned(std::nanf(""), {"steps=10", output("whole.onnx")});
  const auto parts = poisoned(std::nanf(""), {"steps=10", "checkpoint={steps: 6}", output("parts.onnx")});
  EXPECT_EQ(skipped(whole), (std::vector<uint64_t>{5, 9}));
  EXPECT_EQ(skipped(parts), (std::vector<uint64_t>{5, 9}));
  EXPECT_EQ(test::read_file(whole.output), test::read_file(parts.output));
  std::filesystem::remove(parts.output);
  EXPECT_EQ(skipped(parts, {.resume = train::checkpoint_folder(parts)}), (std::vector<uint64_t>{9}));
  EXPECT_EQ(test::read_file(whole.output), test::read_file(parts.output));
}

TEST_F(SkippedSteps, StopIsTheDefaultAndEndsAtTheFirst) {
  const auto stops = poisoned(1e30f, {"steps=10", "on_divergence=stop", output("stop.onnx")});
  const auto result = train::train(stops, *cpu(1), {}, [](const train::Event&) {});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result->steps, 4u);
  EXPECT_EQ(result->diverged.rfind("step 5: ", 0), 0u) << result->diverged;
  EXPECT_FALSE(std::filesystem::exists(stops.output));
}

TEST_F(SkippedSteps, AreNotWaitedForWhereTheDataTellThem) {
  const auto stops = poisoned(std::nanf(""), {"steps=10", "on_divergence=stop", output("stop.onnx")});
  size_t events = 0;
  const auto result = train::train(stops, *cpu(1), {}, [&](const train::Event&) { ++events; });
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("column 'image' holds nan in row 71"), std::string::npos)
      << result.error().message;
  EXPECT_EQ(events, 0u);
}

// The gradients of the last step were finite; what came of them is not.
TEST_F(Trainer, WritesNothingThatIsNotFinite) {
  for (const bool checkpoints : {false, true}) {
    std::vector<std::string> sets{"steps=1", "optimizer={type: sgd, learning_rate: 1e40}", "clip_norm=null",
                                  "schedule=null", output("infinite.onnx")};
    if (checkpoints) sets.emplace_back("checkpoint={steps: 1}");
    const auto wild = job("resnet_small", sets);
    const auto result = train::train(wild, *cpu(1), {}, [](const train::Event&) {});
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(result->diverged.rfind("step 1: after it '", 0), 0u) << result->diverged;
    EXPECT_TRUE(result->checkpoint.empty());
    EXPECT_FALSE(std::filesystem::exists(wild.output));
  }
}

TEST_F(SkippedSteps, TooManyInARowEndTheRun) {
  const auto never =
      poisoned(std::nanf(""), {"steps=1000", "batch_size=72", "microbatch_size=72", output("never.onnx")});
  const auto result = train::train(never, *cpu(1), {}, [](const train::Event&) {});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result->diverged, "step 100: the loss is nan, and it is the 100th in a row that is skipped");
}

TEST_F(Trainer, RefusesACheckpointOfAnotherJob) {
  const auto first = job("gpt3", {"steps=2", "checkpoint={steps: 1}", output("first.onnx")});
  trained_bytes(first, *cpu(1));
  const auto other = job("resnet_small", {"steps=2", output("other.onnx")});
  const auto backend = cpu(1);
  const auto result =
      train::train(other, *backend, {.resume = train::checkpoint_folder(first)}, [](const train::Event&) {});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(result.error().message.find("another model"), std::string::npos) << result.error().message;
}

TEST_F(Trainer, RefusesACheckpointOfAnotherWeightOfALoss) {
  const std::string loss = "loss={type: cross_entropy, logits: fine, labels: label, weight: ";
  const auto first =
      job("two_heads", {"steps=2", "checkpoint={steps: 1}", loss + "0.5}", output("weighed.onnx")});
  trained_bytes(first, *cpu(1));
  const auto other = job("two_heads", {"steps=2", loss + "0.25}", output("other.onnx")});
  const auto backend = cpu(1);
  const auto result =
      train::train(other, *backend, {.resume = train::checkpoint_folder(first)}, [](const train::Event&) {});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("another model, loss"), std::string::npos) << result.error().message;
}

TEST_F(Trainer, SaysWhichInputGetsNoData) {
  const auto wrong = job("gpt3", {"inputs={token: tokens}"});
  const auto backend = peer::make_reference_backend();
  const auto result = train::train(wrong, *backend, {}, [](const train::Event&) {});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::NotFound);
  EXPECT_NE(result.error().message.find("no input 'token'; it has 'tokens'"), std::string::npos)
      << result.error().message;
}

TEST_F(Trainer, SaysWhichColumnIsMissing) {
  const auto wrong = job("resnet_small", {"inputs={x: pixels}"});
  const auto backend = peer::make_reference_backend();
  const auto result = train::train(wrong, *backend, {}, [](const train::Event&) {});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::NotFound);
  EXPECT_NE(result.error().message.find("no column 'pixels'"), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find("image"), std::string::npos) << result.error().message;
}

TEST_F(Trainer, RefusesToTrainNothing) {
  const auto frozen = job("resnet_small", {"freeze=['*']"});
  const auto backend = peer::make_reference_backend();
  const auto result = train::train(frozen, *backend, {}, [](const train::Event&) {});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("no parameter"), std::string::npos) << result.error().message;
}

TEST_F(Trainer, AFreezePatternThatMatchesNothingIsAnErrorWithItsLineAndNearNames) {
  const auto folder = scratch_.folder() / "freeze";
  std::filesystem::create_directories(folder);
  test::unpack_case("gpt3", folder);
  std::string text = test::read_file(folder / "job.yaml");
  const std::string freeze = "freeze: [\"mask\"]\n";
  ASSERT_NE(text.find(freeze), std::string::npos) << text;
  const size_t line =
      static_cast<size_t>(std::count(text.begin(), text.begin() + text.find(freeze), '\n')) + 1;
  const std::pair<std::string, std::string> cases[] = {
      {"maks", "near names are 'mask'"},
      {"h.0", "did you mean 'h.0*' (matches 12)?"},
      {"*.c_atn.weight", "near names are 'h.0.c_attn.weight', 'h.1.c_attn.weight', 'h.2.c_attn.weight'"},
      {"nothing of the kind at all", "they are named like"},
  };
  for (const auto& [pattern, advice] : cases) {
    SCOPED_TRACE(pattern);
    std::string wrong = text;
    wrong.replace(wrong.find(freeze), freeze.size(), "freeze: [\"mask\", \"" + pattern + "\"]\n");
    std::ofstream(folder / "job.yaml") << wrong;
    const auto loaded = configs::load_job(folder / "job.yaml");
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    const auto backend = peer::make_reference_backend();
    const auto result = train::train(*loaded, *backend, {}, [](const train::Event&) {});
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::NotFound);
    const std::string& message = result.error().message;
    EXPECT_NE(
        message.find("job.yaml:" + std::to_string(line) + ":18: nothing is frozen by '" + pattern + "'"),
        std::string::npos)
        << message;
    EXPECT_NE(message.find(advice), std::string::npos) << message;
  }
}

std::vector<std::string> warnings_of(const configs::Job& job) {
  std::vector<std::string> warnings;
  const auto backend = peer::make_reference_backend();
  const auto result = train::train(job, *backend, {}, [&](const train::Event& event) {
    if (const auto* start = std::get_if<train::StartEvent>(&event)) warnings = start->warnings;
  });
  EXPECT_TRUE(result.has_value()) << result.error().message;
  return warnings;
}

TEST_F(Trainer, WarnsOfParametersAndOutputsThatTheLossDoesNotReach) {
  EXPECT_TRUE(warnings_of(job("two_heads", {"steps=1", output("both.onnx")})).empty());
  const auto warnings =
      warnings_of(job("two_heads", {"steps=1", "loss={type: cross_entropy, logits: fine, labels: label}",
                                    output("one.onnx")}));
  const std::vector<std::string> expected = {
      "the loss does not reach 'coarse.weight', 'coarse.bias': not trained",
      "the loss does not read the model's output 'coarse'"};
  EXPECT_EQ(warnings, expected);
}

TEST_F(Trainer, OneLossInAListIsThatLoss) {
  const auto backend = cpu(1);
  const std::string one = "{type: cross_entropy, logits: fine, labels: label}";
  const std::string plain =
      trained_bytes(job("two_heads", {"steps=2", "loss=" + one, output("p.onnx")}), *backend);
  EXPECT_EQ(plain,
            trained_bytes(job("two_heads", {"steps=2", "loss=[" + one + "]", output("l.onnx")}), *backend));
}

TEST_F(Trainer, ALossIsWeighedAlsoAlone) {
  const auto losses = [&](const std::string& weight) {
    std::vector<double> all;
    const auto loaded =
        job("two_heads", {"steps=1", "loss={type: cross_entropy, logits: fine, labels: label" + weight + "}",
                          output("w.onnx")});
    const auto backend = peer::make_reference_backend();
    const auto result = train::train(loaded, *backend, {}, [&](const train::Event& event) {
      if (const auto* step = std::get_if<train::StepEvent>(&event)) all = {step->loss, step->gradient_norm};
    });
    EXPECT_TRUE(result.has_value()) << result.error().message;
    return all;
  };
  const auto whole = losses(""), quarter = losses(", weight: 0.25");
  ASSERT_EQ(whole.size(), 2u);
  EXPECT_EQ(quarter[0], 0.25 * whole[0]);
  EXPECT_NEAR(quarter[1], 0.25 * whole[1], 1e-12 * whole[1]);
}

TEST_F(Trainer, ALossOfAListThatDoesNotFitIsToldByItsPlace) {
  const auto wrong = [&](const std::string& second) {
    const auto loaded =
        job("two_heads", {"loss=[{type: cross_entropy, logits: fine, labels: label}, " + second + "]"});
    const auto backend = peer::make_reference_backend();
    const auto result = train::train(loaded, *backend, {}, [](const train::Event&) {});
    EXPECT_FALSE(result.has_value());
    return result ? std::string() : result.error().message;
  };
  EXPECT_NE(
      wrong("{type: cross_entropy, logits: corse, labels: coarse}").find("the model has no output 'corse'"),
      std::string::npos);
  EXPECT_NE(wrong("{type: cross_entropy, logits: coarse, labels: group}").find("no column 'group'"),
            std::string::npos);
  EXPECT_NE(wrong("{type: mse, output: coarse, target: image}").find("differ in shape"), std::string::npos);
}

TEST_F(Trainer, EvaluatesEverySampleOnceWhateverTheMicrobatch) {
  // 7 does not divide the number of samples: the last microbatch is padded, and padding must not count.
  std::map<std::string, double> first;
  uint64_t samples = 0;
  for (const char* size : {"4", "7"}) {
    const auto evaluated = job(
        "resnet_small",
        {"steps=1", "optimizer.learning_rate=1e-30", std::string("batch_size=") + size,
         std::string("microbatch_size=") + size, "clip_norm=1e30",
         "data.test={type: npz, path: " + (scratch_.folder() / "resnet_small" / "data.npz").string() + "}",
         output(std::string("e") + size + ".onnx")});
    const auto backend = peer::make_reference_backend();
    const auto result = train::train(evaluated, *backend, {}, [&](const train::Event& event) {
      const auto* evaluation = std::get_if<train::EvaluationEvent>(&event);
      if (evaluation == nullptr) return;
      if (samples == 0) samples = evaluation->samples;
      EXPECT_EQ(evaluation->samples, samples);
      EXPECT_NE(evaluation->samples % 7, 0u) << "the test wants a short last microbatch";
    });
    ASSERT_TRUE(result.has_value()) << result.error().message;
    ASSERT_TRUE(result->metrics.contains("accuracy"));
    EXPECT_TRUE(std::isfinite(result->metrics.at("loss")));
  }
}

}  // namespace
}  // namespace weft
