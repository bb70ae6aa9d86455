// Jobs whose optimizer slots are kept in eight bits: they learn what others learn, go on to the same bytes,
// and do not take each other's checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "storage/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/beginning.h"
#include "train/outputs.h"
#include "train/prepare.h"
#include "train/trainer.h"

namespace weft {
namespace {

constexpr const char* kCoded = "optimizer.slots=int8";

class CodedSlots : public testing::Test {
 protected:
  configs::Job job(const std::string& name, std::vector<std::string> sets, const std::string& output) {
    const auto folder = scratch_.folder() / name;
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directories(folder);
      test::unpack_case(name, folder);
    }
    sets.push_back("output=" + (scratch_.folder() / output).string());
    auto loaded = configs::load_job(folder / "job.yaml", sets);
    if (!loaded) throw std::runtime_error(loaded.error().message);  // ends this test, not the others
    return std::move(*loaded);
  }
  struct Run {
    Result<train::ResultEvent> result = train::ResultEvent{};
    std::vector<double> losses;
    std::string bytes() const {
      if (!result) return result.error().message;
      return result->stopped ? std::string() : test::read_file(result->output);
    }
  };
  static Run run(const configs::Job& job, train::TrainOptions options = {}, uint64_t stop_in = 0,
                 int threads = 1) {
    auto backend = peer::make_cpu_backend({.threads = threads, .pin = false});
    Run run;
    std::atomic<bool> stop{false};
    options.stop = &stop;
    run.result = train::train(job, **backend, options, [&](const train::Event& event) {
      if (const auto* step = std::get_if<train::StepEvent>(&event)) {
        run.losses.push_back(step->loss);
        if (step->step == stop_in) stop = true;
      }
    });
    return run;
  }

  test::Scratch scratch_;
};

TEST_F(CodedSlots, LearnWhatFloat32SlotsLearn) {
  for (const char* name : {"gpt3", "resnet_small"}) {
    const Run plain = run(job(name, {"steps=40"}, "plain.onnx")),
              coded = run(job(name, {"steps=40", kCoded}, "coded.onnx"));
    ASSERT_TRUE(coded.result.has_value()) << coded.result.error().message;
    ASSERT_EQ(coded.losses.size(), 40u);
    EXPECT_EQ(coded.losses[0], plain.losses[0]);
    EXPECT_NE(coded.losses[39], plain.losses[39]) << "another arithmetic";
    double of_plain = 0, of_coded = 0;  // of the last steps
    for (size_t i = 32; i < 40; ++i) of_plain += plain.losses[i], of_coded += coded.losses[i];
    EXPECT_NEAR(of_coded / of_plain, 1, 0.02) << name;
    RecordProperty(std::string(name) + "_ratio", std::to_string(of_coded / of_plain));
  }
}

TEST_F(CodedSlots, GiveTheSameBytesFromAnyNumberOfThreadsAndAfterAStop) {
  for (const char* name : {"gpt3", "resnet_small"}) {
    const auto whole = job(name, {"steps=8", kCoded}, "whole.onnx"),
               parts = job(name, {"steps=8", kCoded, "checkpoint={steps: 3}"}, "parts.onnx");
    const std::string bytes = run(whole).bytes();
    EXPECT_TRUE(bytes == run(whole, {}, 0, 3).bytes());
    EXPECT_TRUE(run(parts, {}, 5).bytes().empty());
    EXPECT_TRUE(bytes == run(parts, {.resume = train::checkpoint_folder(parts)}).bytes()) << name;
  }
}

TEST_F(CodedSlots, ReplicasHaveTheirOwn) {
  const std::vector<std::string> sets{"steps=20", "replicas=2", "sync={every: 3}", kCoded,
                                      "checkpoint={steps: 11}"};
  const auto whole = job("gpt3", sets, "whole.onnx"), parts = job("gpt3", sets, "parts.onnx");
  const Run once = run(whole);
  ASSERT_TRUE(once.result.has_value()) << once.result.error().message;
  EXPECT_TRUE(once.bytes() == run(parts).bytes());
  std::filesystem::remove(parts.output);
  EXPECT_TRUE(once.bytes() == run(parts, {.resume = train::checkpoint_folder(parts)}).bytes());
}

TEST_F(CodedSlots, OfACheckpointAreWhatTheJobHasOrItIsRefused) {
  const auto plain = job("gpt3", {"steps=4", "checkpoint={steps: 2}"}, "plain.onnx"),
             coded = job("gpt3", {"steps=4", "checkpoint={steps: 2}", kCoded}, "coded.onnx");
  run(plain), run(coded);
  const auto refusal = [&](const configs::Job& then, const configs::Job& now) {
    const Run resumed = run(now, {.resume = train::checkpoint_folder(then)});
    if (resumed.result) return std::string("(no error)");
    EXPECT_EQ(resumed.result.error().code, ErrorCode::InvalidArgument);
    return resumed.result.error().message;
  };
  EXPECT_NE(refusal(plain, coded).find("has the optimizer's slots as float32, and the job as int8"),
            std::string::npos)
      << refusal(plain, coded);
  EXPECT_NE(refusal(coded, plain).find("has the optimizer's slots as int8, and the job as float32"),
            std::string::npos)
      << refusal(coded, plain);
}

// A job that is submitted begins with them.
TEST_F(CodedSlots, BeginASubmittedJob) {
  const auto first = job("gpt3", {"steps=4", "checkpoint={steps: 2}", kCoded}, "first.onnx");
  run(first);
  const auto begun = job("gpt3", {"steps=9", kCoded}, "begun.onnx");
  const auto model = onnx::read_model(begun.model);
  const auto data = data::open_dataset(*begun.train);
  ASSERT_TRUE(model && data);
  const auto prepared = train::prepare_training(begun, *model, **data, peer::evaluate_reference);
  ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
  const auto read =
      train::read_beginning({.checkpoint = train::checkpoint_folder(first)}, begun, *prepared, 9);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  int64_t slots = 0, weights = 0;
  for (const auto& tensor : read->tensors)
    (dag::is_weight(tensor.key.slot) ? weights : slots) += tensor.spec.bytes().value;
  EXPECT_LT(slots, weights * 52 / 100);
}

}  // namespace
}  // namespace weft
