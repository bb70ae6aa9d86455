// What peers owe of parts of a tensor, on one machine: `weft local` goes on from it.
#include <gtest/gtest.h>

#include "replicas/parts.h"
#include "storage/checkpoint.h"
#include "tests/train/local_replicas.h"

namespace weft {
namespace {

class ReplicaParts : public test::LocalReplicas {};

// Of a checkpoint that peers wrote: each of them owed what it had of the means that it took.
TEST_F(ReplicaParts, GoOnFromWhatIsOwedOfPartsOfATensor) {
  const std::vector<std::string> sets{"steps=8", "replicas=2", "sync={every: 2, codec: int4}",
                                      "checkpoint={steps: 4}"};
  const auto whole = job("resnet18w16", sets, "whole.onnx");
  const std::string bytes = run(whole, {}, 4).bytes;
  storage::Files files;
  auto loaded = storage::load_checkpoint(train::checkpoint_folder(whole), files);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  storage::Checkpoint& checkpoint = loaded->checkpoint;
  size_t all = 0, divided = 0;
  for (const auto& [key, tensor] : checkpoint.tensors)
    all += is_weight(key.slot) ? static_cast<size_t>(tensor.element_count()) : 0;
  const auto tensors = checkpoint.tensors;
  for (const auto& [key, tensor] : tensors) {
    const auto parts = replicas::parts_of(static_cast<size_t>(tensor.element_count()), all);
    if (key.slot != dag::StateSlot::ReturnResidue || parts.size() == 1) continue;
    checkpoint.tensors.erase(key);
    dag::StateKey part = key;
    for (const replicas::Part& range : parts) {
      ++part.replica;
      checkpoint.tensors[part] =
          dag::Tensor({dag::DType::F32, {static_cast<int64_t>(range.count)}},
                      std::as_bytes(tensor.as<float>().subspan(range.first, range.count)));
    }
    ++divided;
  }
  ASSERT_GT(divided, 0u);
  const auto folder = scratch_.folder() / "of-peers";
  {
    const auto writer = storage::CheckpointWriter::open(folder, files);
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    const auto written = (*writer)->write(checkpoint);
    ASSERT_TRUE(written.has_value()) << written.error().message;
  }
  const Run resumed = run(whole, {.resume = train::checkpoint_folder(whole)});
  ASSERT_FALSE(resumed.bytes.empty());
  EXPECT_TRUE(run(job("resnet18w16", sets, "parts.onnx"), {.resume = folder}).bytes == resumed.bytes);
  // What was left out with its owner is owed by nobody; what is of another length is an error.
  for (auto& [key, tensor] : checkpoint.tensors)
    if (key.slot == dag::StateSlot::ReturnResidue && key.replica == 2)
      tensor = dag::Tensor({dag::DType::F32, {8}});
  {
    const auto writer = storage::CheckpointWriter::open(scratch_.folder() / "damaged", files);
    ASSERT_TRUE(writer.has_value() && (*writer)->write(checkpoint).has_value());
  }
  const auto backend = test::one_cpu();
  const auto refused = train::train(job("resnet18w16", sets, "none.onnx"), *backend,
                                    {.resume = scratch_.folder() / "damaged"}, [](const train::Event&) {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("of part 2"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace weft
