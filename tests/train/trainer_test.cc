// The trainer's promises: the same bytes again, from any number of threads, and after stopping and resuming;
// clear errors before anything starts.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "configs/job.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
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

TEST_F(Trainer, EvaluatesEverySampleOnceWhateverTheMicrobatch) {
  // 7 does not divide the number of samples: the last microbatch is padded, and padding must not count.
  std::map<std::string, double> first;
  uint64_t samples = 0;
  for (const char* size : {"4", "7"}) {
    const auto evaluated = job(
        "resnet_small", {"steps=1", "optimizer.learning_rate=1e-30", std::string("batch_size=") + size,
                         std::string("microbatch_size=") + size, "clip_norm=1e30",
                         "data.test={type: npz, path: data.npz}", output(std::string("e") + size + ".onnx")});
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
