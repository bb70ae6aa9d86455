// A model taken apart by its tensors is, put together again, the same file.
#include "dag/onnx/pack.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "dag/onnx/model.h"
#include "dag/onnx/schema.h"
#include "storage/package.h"
#include "tests/onnx/models.h"

namespace weft::onnx {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::read_all;
using testing::write_bytes;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<storage::Range> as_ranges(const std::vector<TensorRange>& tensors) {
  std::vector<storage::Range> ranges;
  for (const TensorRange& tensor : tensors) ranges.push_back({tensor.offset, tensor.size});
  return ranges;
}

// Packs, uploads, unpacks. How many blobs there were.
size_t there_and_back(const fs::path& from, const std::vector<TensorRange>& tensors,
                      storage::BlobStore& blobs, const fs::path& to) {
  const auto packed = value_or_fail(storage::pack(from, as_ranges(tensors)));
  for (const auto& [digest, source] : packed.blobs) {
    auto writer = value_or_fail(blobs.begin(digest, source.range.size));
    EXPECT_TRUE(storage::read_source(source, [&](auto part) { return writer->write(part); }).has_value());
    EXPECT_TRUE(writer->finish().has_value());
  }
  EXPECT_TRUE(storage::unpack(packed.pieces, blobs, to).has_value());
  EXPECT_EQ(read_all(from), read_all(to)) << from;
  return packed.blobs.size();
}

TEST(Pack, TheExampleModelsComeBackByteForByte) {
  const fs::path folder = fresh_folder("pack_examples");
  auto blobs = value_or_fail(storage::BlobStore::open(folder / "blobs"));
  for (const char* name : {"fashion-mnist", "gpt"}) {
    const fs::path model = fs::path("examples") / name / "model.onnx";
    const auto tensors = value_or_fail(tensor_ranges(model));
    EXPECT_GT(tensors.size(), 3u);
    EXPECT_EQ(tensors, value_or_fail(tensor_ranges(as_bytes(read_all(model)))));
    EXPECT_GT(there_and_back(model, tensors, *blobs, folder / name / "model.onnx"), 3u);
    // The blobs have the hashes of the weights: checkpoints and models share them.
    size_t shared = 0;
    const auto loaded = value_or_fail(read_model(model));
    for (const auto& [weight, tensor] : loaded.weights())
      if (tensor.bytes().size() >= kPackedTensorMin) {
        EXPECT_TRUE(blobs->has(storage::sha256(tensor.bytes()))) << weight;
        ++shared;
      }
    EXPECT_GT(shared, 3u);
    EXPECT_EQ(value_or_fail(list_external_files(model)).size(), 0u);
  }
}

// linear_model() with a weight of 64 x 64 in one external file, two more in another.
fs::path external_model(const fs::path& folder) {
  auto maker = testing::linear_model();
  const std::string tensor(64 * 64 * 4, 'w');
  const auto external = [&](const std::string& name, const std::string& location, uint64_t offset) {
    auto& weight = maker.weight(name, {64, 64});
    weight.clear_float_data();
    weight.clear_raw_data();
    weight.set_data_location(pb::TensorProto::EXTERNAL);
    for (const auto& [key, value] :
         std::map<std::string, std::string>{{"location", location},
                                            {"offset", std::to_string(offset)},
                                            {"length", std::to_string(tensor.size())}}) {
      auto* entry = weight.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
  };
  external("wa", "weights/one.bin", 100);
  external("wb", "two.bin", tensor.size());
  external("wc", "./two.bin", 0);
  fs::create_directories(folder / "weights");
  write_bytes(folder / "weights" / "one.bin", std::string(100, 'h') + tensor + "tail");
  write_bytes(folder / "two.bin", tensor + std::string(tensor.size(), 'v'));
  write_bytes(folder / "model.onnx", maker.bytes());
  return folder / "model.onnx";
}

TEST(Pack, AModelWithExternalDataComesBackByteForByte) {
  const fs::path folder = fresh_folder("pack_external");
  auto blobs = value_or_fail(storage::BlobStore::open(folder / "blobs"));
  const fs::path model = external_model(folder / "from");
  const auto files = value_or_fail(list_external_files(model));
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].location, "two.bin");
  EXPECT_EQ(files[0].tensors, (std::vector<TensorRange>{{0, 16384}, {16384, 16384}}));
  EXPECT_EQ(files[1].location, "weights/one.bin");
  EXPECT_EQ(files[1].tensors, (std::vector<TensorRange>{{100, 16384}}));
  there_and_back(model, value_or_fail(tensor_ranges(model)), *blobs, folder / "to" / "model.onnx");
  for (const auto& file : files)
    EXPECT_GT(
        there_and_back(folder / "from" / file.location, file.tensors, *blobs, folder / "to" / file.location),
        0u);
  const auto loaded = value_or_fail(read_model(folder / "to" / "model.onnx"));
  EXPECT_EQ(loaded.weights().at("wa").bytes().size(), 16384u);
  EXPECT_TRUE(blobs->has(storage::sha256(loaded.weights().at("wb").bytes())));
}

TEST(Pack, ExternalDataOutsideTheFolderIsRefused) {
  const fs::path folder = fresh_folder("pack_outside");
  external_model(folder);
  for (const char* location : {"../secret", "/etc/passwd", "link.bin"}) {
    auto maker = testing::linear_model();
    auto& weight = maker.weight("wa", {64, 64});
    auto* entry = weight.add_external_data();
    entry->set_key("location");
    entry->set_value(location);
    write_bytes(folder / "model.onnx", maker.bytes());
    fs::remove(folder / "link.bin");
    fs::create_symlink(folder / "two.bin", folder / "link.bin");
    const auto files = list_external_files(folder / "model.onnx");
    ASSERT_FALSE(files.has_value()) << location;
    EXPECT_EQ(files.error().code, ErrorCode::PermissionDenied) << files.error().message;
  }
}

TEST(Pack, HostileBytesAreRefusedOrGiveRangesInsideTheFile) {
  const fs::path folder = fresh_folder("pack_hostile");
  std::vector<std::string> originals = {read_all("examples/fashion-mnist/model.onnx").substr(0, 60'000),
                                        read_all(external_model(folder))};
  size_t taken = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0xBAD);
    std::string bytes = originals[seed % 2];
    for (uint64_t times = 1 + rng.below(6); times > 0; --times) {
      const size_t at =
          rng.below(2) == 0 ? rng.below(std::min<size_t>(bytes.size(), 400)) : rng.below(bytes.size());
      if (rng.below(8) == 0)
        bytes.resize(at + 1);
      else
        bytes[at] = static_cast<char>(rng.below(3) == 0 ? 0xFF : rng.below(256));
    }
    const auto ranges = tensor_ranges(as_bytes(bytes));
    ++(ranges ? taken : refused);
    uint64_t end = 0;
    for (const TensorRange& range : ranges.value_or(std::vector<TensorRange>{})) {
      EXPECT_GE(range.offset, end);
      end = range.offset + range.size;
      EXPECT_LE(end, bytes.size());
    }
    if (seed % 10 != 0) continue;
    write_bytes(folder / "model.onnx", bytes);
    if (const auto files = list_external_files(folder / "model.onnx")) {
      for (const ExternalFile& file : *files)
        for (const TensorRange& range : file.tensors) EXPECT_LE(range.offset + range.size, file.size);
    }
  }
  EXPECT_GT(taken, 100u);
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace weft::onnx
