// What lies in a folder is found by the hash that a job's blob has; what has changed is not given.
#include "weights/index.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/mutex.h"
#include "dag/onnx/schema.h"
#include "storage/sha256.h"
#include "storage/text_file.h"
#include "tests/weights/written.h"
#include "weights/catalogue.h"

namespace weft::weights {
namespace {
namespace fs = std::filesystem;

Digest digest_of(const dag::Tensor& tensor) { return *digest_from_hex(storage::sha256_hex(tensor.bytes())); }
dag::Tensor transposed(const dag::Tensor& tensor) {
  const int64_t rows = tensor.shape()[0], columns = tensor.shape()[1];
  dag::Tensor turned({tensor.dtype(), {columns, rows}});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      turned.mutable_as<float>()[static_cast<size_t>(c * rows + r)] =
          tensor.as<float>()[static_cast<size_t>(r * columns + c)];
  return turned;
}

// An index that has looked, and what it said.
struct Looked {
  explicit Looked(const fs::path& folder, const fs::path& kept = {}) {
    auto opened = WeightIndex::open({.folder = folder, .kept = kept, .log = [this](const std::string& line) {
                                       const MutexLock lock(mutex);
                                       lines += line + "\n";
                                     }});
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    index = std::move(*opened);
    index->wait();
  }
  bool gives(const dag::Tensor& tensor) const {
    const Digest digest = digest_of(tensor);
    if (index->size_of(digest) != tensor.bytes().size()) return false;
    const auto bytes = index->read(digest);
    return bytes && std::equal(bytes->begin(), bytes->end(), tensor.bytes().begin(), tensor.bytes().end());
  }
  Mutex mutex;
  std::string lines;
  std::unique_ptr<WeightIndex> index;
};

// Weights published as bfloat16, and the float32 that an exporter made of it, some of it transposed.
TEST(WeightIndex, FindsWhatAnExporterMadeOfPublishedWeights) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 1);
  std::vector<dag::Tensor> published;
  for (int i = 0; i < 8; ++i) published.push_back(random_tensor({dag::DType::BF16, {48 + i, 32}}, rng));
  published.push_back(random_tensor({dag::DType::BF16, {77}}, rng));
  fs::create_directories(folder / "models--some--model" / "snapshots" / "1");
  const Written written(folder / "models--some--model" / "snapshots" / "1" / "model.safetensors", published);
  const Looked looked(folder);
  EXPECT_EQ(looked.index->counts().tensors, 9u);
  EXPECT_EQ(looked.index->counts().files, 1u);
  EXPECT_NE(looked.lines.find("info weights_indexed files=1 tensors=9"), std::string::npos) << looked.lines;
  for (size_t i = 0; i < published.size(); ++i) {
    EXPECT_TRUE(looked.gives(published[i]));
    const dag::Tensor wide = dag::widen_half(published[i]);
    EXPECT_TRUE(looked.gives(wide));
    if (wide.spec().rank() == 2) {
      EXPECT_TRUE(looked.gives(transposed(wide)));
    }
  }
  EXPECT_FALSE(looked.gives(random_tensor({dag::DType::F32, {10}}, rng)));
}

// Also small ones, and those in a file beside the model.
TEST(WeightIndex, FindsTheTensorsOfOnnxModels) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 9);
  const dag::Tensor inside = random_tensor({dag::DType::F32, {6, 4}}, rng),
                    beside = random_tensor({dag::DType::F32, {5, 3}}, rng);
  onnx::pb::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  auto& graph = *model.mutable_graph();
  graph.set_name("g");
  const auto add = [&](const char* name, const dag::Tensor& tensor) -> onnx::pb::TensorProto& {
    auto& proto = *graph.add_initializer();
    proto.set_name(name);
    proto.set_data_type(onnx::pb::TensorProto::FLOAT);
    for (const int64_t dim : tensor.shape()) proto.add_dims(dim);
    return proto;
  };
  const auto text_of = [](const dag::Tensor& tensor) {
    return std::string(reinterpret_cast<const char*>(tensor.bytes().data()), tensor.bytes().size());
  };
  add("inside", inside).set_raw_data(text_of(inside));
  auto& proto = add("beside", beside);
  proto.set_data_location(onnx::pb::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair{"location", "m.data"}, {"offset", "16"}, {"length", "60"}}) {
    auto& entry = *proto.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }
  std::ofstream(folder / "m.data", std::ios::binary) << std::string(16, 'x') << text_of(beside);
  std::ofstream(folder / "m.onnx", std::ios::binary) << model.SerializeAsString();
  const Looked looked(folder);
  EXPECT_EQ(looked.index->counts().tensors, 2u) << looked.lines;
  for (const dag::Tensor& tensor : {inside, beside}) {
    EXPECT_TRUE(looked.gives(tensor));
    EXPECT_TRUE(looked.gives(transposed(tensor)));
  }
}

// Numbers in blocks beside them are passed over.
TEST(WeightIndex, FindsTheTensorsOfGgufFiles) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 10);
  const dag::Tensor half = random_tensor({dag::DType::F16, {8, 32}}, rng);
  const auto text_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string head = "GGUF" + text_of(uint32_t{3}) + text_of(uint64_t{2}) + text_of(uint64_t{0});
  for (const auto& [type, offset] : {std::pair<uint32_t, uint64_t>{1, 0}, {2, 512}})
    head += text_of(uint64_t{1}) + (type == 1 ? "a" : "b") + text_of(uint32_t{2}) + text_of(uint64_t{32}) +
            text_of(uint64_t{8}) + text_of(type) + text_of(offset);
  head.resize((head.size() + 31) / 32 * 32, '\0');
  std::ofstream(folder / "m.gguf", std::ios::binary)
      << head << std::string(reinterpret_cast<const char*>(half.bytes().data()), half.bytes().size())
      << std::string(8 * 18, 'q');
  const Looked looked(folder);
  EXPECT_EQ(looked.index->counts().tensors, 1u) << looked.lines;
  EXPECT_TRUE(looked.gives(dag::widen_half(half)));
  EXPECT_TRUE(looked.gives(transposed(dag::widen_half(half))));
}

// The layout of a Hugging Face cache: links to files that are called by a hash.
TEST(WeightIndex, FollowsTheLinksOfACache) {
  const fs::path folder = fresh_folder(), model = folder / "models--a--b";
  Rng rng(3, 2);
  const dag::Tensor tensor = random_tensor({dag::DType::F32, {16, 4}}, rng);
  for (const char* name : {"blobs", "snapshots/1", "snapshots/2"}) fs::create_directories(model / name);
  const Written written(model / "blobs" / "0123abcd", {tensor});
  for (const char* snapshot : {"1", "2"})
    fs::create_symlink("../../blobs/0123abcd", model / "snapshots" / snapshot / "model.safetensors");
  fs::create_directory_symlink("..", model / "snapshots" / "loop");
  fs::create_symlink("nowhere", model / "snapshots" / "1" / "gone.safetensors");
  const Looked looked(folder);
  EXPECT_EQ(looked.index->counts().files, 1u) << "both links are one file";
  EXPECT_TRUE(looked.gives(tensor));
  EXPECT_TRUE(looked.gives(transposed(tensor)));
}

TEST(WeightIndex, KeepsHashesForTheNextTime) {
  const fs::path folder = fresh_folder(), kept = folder / "weights.jsonl";
  Rng rng(3, 3);
  const dag::Tensor first = random_tensor({dag::DType::F32, {20, 30}}, rng),
                    second = random_tensor({dag::DType::F32, {20, 30}}, rng);
  const Written one(folder / "one.safetensors", {first});
  const Written two(folder / "two.safetensors", {second});
  { const Looked looked(folder, kept); }
  // Hashes that are kept are believed until something is read: another file's in their place show it.
  auto files = parse_index(*storage::read_text(kept, 1 << 20));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  ASSERT_EQ(files->size(), 2u);
  (*files)[0].digests[0][0] = Digest{{1, 2, 3}};
  {
    std::ofstream out(kept, std::ios::trunc);
    out << first_line();
    for (const IndexedFile& file : *files) out << line_of(file);
  }
  const Looked again(folder, kept);
  EXPECT_TRUE(again.index->size_of(Digest{{1, 2, 3}}).has_value());
  EXPECT_EQ(again.index->read(Digest{{1, 2, 3}}).error().code, ErrorCode::Corrupted);
  EXPECT_TRUE(again.gives(second));
  // What was changed since is hashed again.
  const Written changed(folder / "one.safetensors", {second, first});
  const Looked after(folder, kept);
  EXPECT_TRUE(after.gives(first));
  EXPECT_FALSE(after.index->size_of(Digest{{1, 2, 3}}).has_value());
  // And what was taken away is no longer there.
  fs::remove(folder / "two.safetensors");
  const Looked last(folder, kept);
  EXPECT_EQ(last.index->counts().files, 1u);
}

TEST(WeightIndex, DoesNotGiveWhatHasChanged) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 4);
  const dag::Tensor before = random_tensor({dag::DType::F32, {200}}, rng),
                    other = random_tensor({dag::DType::F32, {300}}, rng);
  { const Written written(folder / "one.safetensors", {before, other}); }
  const Looked looked(folder);
  EXPECT_TRUE(looked.gives(before));
  { const Written written(folder / "one.safetensors", {other, before}); }
  const auto read = looked.index->read(digest_of(before));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::Corrupted);
  EXPECT_NE(read.error().message.find("one.safetensors"), std::string::npos) << read.error().message;
  EXPECT_FALSE(looked.index->size_of(digest_of(other)).has_value())
      << "nothing of the file is known any more";
  EXPECT_EQ(looked.index->read(digest_of(other)).error().code, ErrorCode::NotFound);
}

TEST(WeightIndex, PassesOverWhatIsNoFileOfTensors) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 5);
  const dag::Tensor tensor = random_tensor({dag::DType::F32, {200}}, rng);
  const Written written(folder / "good.safetensors", {tensor});
  std::ofstream(folder / "short.safetensors") << "abc";
  std::ofstream(folder / "noise.onnx") << "no model at all";
  std::ofstream(folder / "readme.txt") << "hello";
  fs::create_directories(folder / "folder.safetensors");
  const Looked looked(folder);
  EXPECT_TRUE(looked.gives(tensor));
  EXPECT_NE(looked.lines.find("warning weights_skipped"), std::string::npos);
  EXPECT_NE(looked.lines.find("short.safetensors"), std::string::npos) << looked.lines;
  EXPECT_NE(looked.lines.find("noise.onnx"), std::string::npos) << looked.lines;
}

TEST(WeightIndex, WantsAFolder) {
  const fs::path folder = fresh_folder();
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(WeightIndex::open({.folder = folder / "none"}).error().code, ErrorCode::NotFound);
  EXPECT_EQ(WeightIndex::open({.folder = folder / "file"}).error().code, ErrorCode::InvalidArgument);
}

TEST(WeightIndex, IgnoresAFileOfHashesThatIsBroken) {
  const fs::path folder = fresh_folder(), kept = folder / "weights.jsonl";
  Rng rng(3, 6);
  const dag::Tensor tensor = random_tensor({dag::DType::F32, {200}}, rng);
  const Written written(folder / "good.safetensors", {tensor});
  const std::string row = R"({"dtype":"f32","shape":[4],"offset":)";
  const auto line = [](int size, const std::string& tensors) {
    return first_line() + R"({"path":"a","modified":0,"size":)" + std::to_string(size) + R"(,"tensors":[)" +
           tensors + "]}\n";
  };
  ASSERT_TRUE(parse_index(line(8, "")).has_value());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"format\":2}\n"),
        first_line() + "{", first_line() + "\n\n", line(8, row + R"(0,"sha256":[]})"),
        line(80, row + R"(18446744073709551615,"sha256":[]})"), line(80, row + R"(0,"sha256":["zz"]})")}) {
    const auto parsed = parse_index(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::Corrupted) << text;
    std::ofstream(kept, std::ios::trunc) << text;
    EXPECT_TRUE(Looked(folder, kept).gives(tensor)) << text;
  }
}

// Whoever joins for a moment, again and again, does not lose what was computed before.
TEST(WeightIndex, KeepsWhatItHadNoTimeToLookAtAgain) {
  const fs::path folder = fresh_folder(), kept = folder / "weights.jsonl";
  Rng rng(3, 8);
  const auto add = [&](const std::string& name) {
    const Written written(folder / (name + ".safetensors"),
                          {random_tensor({dag::DType::BF16, {256, 256}}, rng)});
  };
  for (int i = 0; i < 10; ++i) add("b" + std::to_string(i));
  { const Looked looked(folder, kept); }
  for (int i = 0; i < 20; ++i) {
    add("a" + std::to_string(i));  // looked at first
    auto index = WeightIndex::open({.folder = folder, .kept = kept});
    ASSERT_TRUE(index.has_value());
    index->reset();
    const auto files = parse_index(*storage::read_text(kept, 1 << 20));
    ASSERT_TRUE(files.has_value()) << files.error().message;
    EXPECT_GE(files->size(), 10u);
  }
}

// It ends at once, wherever it is.
TEST(WeightIndex, EndsWhileItLooks) {
  const fs::path folder = fresh_folder();
  Rng rng(3, 7);
  for (int i = 0; i < 40; ++i)
    const Written written(folder / (std::to_string(i) + ".safetensors"),
                          {random_tensor({dag::DType::BF16, {256, 256}}, rng)});
  for (int i = 0; i < 20; ++i) {
    auto index = WeightIndex::open({.folder = folder});
    ASSERT_TRUE(index.has_value());
    (*index)->size_of(Digest{});
    index->reset();
  }
}

}  // namespace
}  // namespace weft::weights
