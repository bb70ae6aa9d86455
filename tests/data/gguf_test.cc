// GGUF as llama.cpp writes it: what its head says of tensors, numbers in blocks, and files that lie.
#include "data/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/rng.h"
#include "data/safetensors.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

// The bytes of a file, put together field by field.
class Bytes {
 public:
  template <typename T>
  Bytes& add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(const std::string& text) {
    add(uint64_t{text.size()});
    text_ += text;
    return *this;
  }
  Bytes& raw(const std::string& bytes) {
    text_ += bytes;
    return *this;
  }
  Bytes& pad(size_t multiple) {
    text_.resize((text_.size() + multiple - 1) / multiple * multiple, '\0');
    return *this;
  }
  const std::string& get() const { return text_; }

 private:
  std::string text_;
};

struct Tensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first
  uint32_t type;
  std::string data;
  std::optional<uint64_t> offset{};
};

// With metadata of many kinds in front, as of a tokenizer.
std::string file_of(const std::vector<Tensor>& tensors, uint32_t alignment = 32, uint32_t version = 3) {
  Bytes head;
  head.raw("GGUF").add(version).add(uint64_t{tensors.size()}).add(uint64_t{4});
  head.text("general.name").add(uint32_t{8}).text("a model");
  head.text("tokenizer.ggml.tokens")
      .add(uint32_t{9})
      .add(uint32_t{8})
      .add(uint64_t{3})
      .text("a")
      .text("")
      .text("bc");
  head.text("tokenizer.ggml.scores")
      .add(uint32_t{9})
      .add(uint32_t{6})
      .add(uint64_t{3})
      .add(1.0f)
      .add(2.0f)
      .add(3.0f);
  head.text("general.alignment").add(uint32_t{4}).add(alignment);
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    head.text(tensor.name).add(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) head.add(dim);
    head.add(tensor.type).add(tensor.offset.value_or(offset));
    offset = (offset + tensor.data.size() + alignment - 1) / alignment * alignment;
  }
  head.pad(alignment);
  for (const Tensor& tensor : tensors) head.raw(tensor.data).pad(alignment);
  return head.get();
}

std::string random_bytes(size_t count, uint64_t seed) {
  Rng rng(seed, /*stream=*/5);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(rng.below(256));
  return bytes;
}
// Blocks whose scales are 0.5, 1, 1.5 and so on.
std::string random_blocks(size_t count, size_t size, uint64_t seed) {
  std::string blocks = random_bytes(count * size, seed);
  for (size_t i = 0; i < count; ++i) {
    const uint16_t scale = dag::f16_from_float(0.5f * static_cast<float>(1 + i % 7));
    std::memcpy(&blocks[i * size], &scale, sizeof scale);
  }
  return blocks;
}

class Gguf : public testing::Test {
 protected:
  fs::path file(const std::string& bytes) {
    const fs::path path = scratch_.folder() / "m.gguf";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  Error refusal(const std::string& bytes) {
    const auto opened = TensorFiles::open(file(bytes));
    EXPECT_FALSE(opened.has_value());
    return opened ? Error{} : opened.error();
  }
  test::Scratch scratch_;
};

TEST_F(Gguf, TensorsAreWhereTheHeadSays) {
  for (const uint32_t alignment : {32u, 64u, 1u}) {
    const std::string f32 = random_bytes(24, 1), f16 = random_bytes(8, 2), bf16 = random_bytes(2, 3);
    const auto files = TensorFiles::open(file(file_of(
        {{"f32", {3, 2}, 0, f32}, {"f16", {4}, 1, f16}, {"bf16", {}, 30, bf16}, {"none", {0, 4}, 0, ""}},
        alignment)));
    ASSERT_TRUE(files.has_value()) << files.error().message;
    ASSERT_EQ(files->tensors().size(), 4u);
    EXPECT_EQ(files->tensors().at("f32").spec, (dag::TensorSpec{dag::DType::F32, {2, 3}}));
    EXPECT_EQ(files->tensors().at("f16").spec, (dag::TensorSpec{dag::DType::F16, {4}}));
    EXPECT_EQ(files->tensors().at("bf16").spec, (dag::TensorSpec{dag::DType::BF16, {}}));
    for (const auto& [name, bytes] : {std::pair{"f32", f32}, {"f16", f16}, {"bf16", bf16}}) {
      const auto whole = files->whole(name);
      ASSERT_TRUE(whole.has_value());
      EXPECT_EQ(std::memcmp(whole->bytes().data(), bytes.data(), bytes.size()), 0) << name;
    }
  }
}

// As ggml defines them, over more than a piece.
TEST_F(Gguf, NumbersInBlocksAreFloats) {
  constexpr uint64_t kRows = 600, kColumns = 960, kBlocks = kRows * kColumns / 32;
  const std::string q4 = random_blocks(kBlocks, 18, 4), q8 = random_blocks(kBlocks, 34, 5);
  const auto files =
      TensorFiles::open(file(file_of({{"q4", {kColumns, kRows}, 2, q4}, {"q8", {kColumns, kRows}, 8, q8}})));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  for (const bool is_four : {true, false}) {
    const auto whole = files->whole(is_four ? "q4" : "q8");
    ASSERT_TRUE(whole.has_value());
    ASSERT_EQ(whole->spec(), (dag::TensorSpec{dag::DType::F32, {kRows, kColumns}}));
    for (size_t i = 0; i < kRows * kColumns; ++i) {
      const size_t block = i / 32, within = i % 32;
      const float scale = 0.5f * static_cast<float>(1 + block % 7);
      int number = 0;
      if (is_four) {
        const auto byte = static_cast<uint8_t>(q4[block * 18 + 2 + within % 16]);
        number = (within < 16 ? byte & 15 : byte >> 4) - 8;
      } else {
        number = static_cast<int8_t>(q8[block * 34 + 2 + within]);
      }
      ASSERT_EQ(whole->as<float>()[i], scale * static_cast<float>(number)) << i;
    }
  }
}

TEST_F(Gguf, TypesThatWeftHasNotAreNamed) {
  const Error known = refusal(file_of({{"w", {256}, 12, std::string(144, 'x')}}));
  EXPECT_EQ(known.code, ErrorCode::Unsupported);
  EXPECT_NE(known.message.find("'w' as Q4_K"), std::string::npos) << known.message;
  EXPECT_NE(refusal(file_of({{"w", {256}, 99, ""}})).message.find("type 99"), std::string::npos);
}

TEST_F(Gguf, FilesThatLieAreRefused) {
  const std::string good = file_of({{"a", {8}, 0, random_bytes(32, 1)}, {"b", {8}, 0, random_bytes(32, 2)}});
  ASSERT_TRUE(TensorFiles::open(file(good)).has_value());
  // Cut off anywhere.
  for (size_t size = 4; size < good.size(); ++size)
    EXPECT_EQ(refusal(good.substr(0, size)).code, ErrorCode::Corrupted) << size;
  struct Case {
    std::string bytes;
    ErrorCode code;
    const char* words;
  };
  const std::string data = random_bytes(32, 1);
  const Case cases[] = {
      {file_of({{"a", {8}, 0, data}, {"a", {8}, 0, data}}), ErrorCode::Corrupted, "'a' twice"},
      {file_of({{"a", {8}, 0, data}, {"b", {8}, 0, data, 16}}), ErrorCode::Corrupted, "overlap"},
      {file_of({{"a", {8}, 0, data, uint64_t{1} << 63}}), ErrorCode::Corrupted, "ends before its tensor"},
      {file_of({{"a", {uint64_t{1} << 62, 16}, 0, data}}), ErrorCode::Corrupted, "a dim of"},
      {file_of({{"a", {uint64_t{1} << 40, 1 << 20}, 0, data}}), ErrorCode::Corrupted, ""},
      {file_of({{"", {8}, 0, data}}), ErrorCode::Corrupted, "proper name"},
      {file_of({{"\xff", {8}, 0, data}}), ErrorCode::Corrupted, "proper name"},
      {file_of({{"a", {1, 1, 1, 1, 8}, 0, data}}), ErrorCode::Corrupted, "too many dims"},
      {file_of({{"a", {40}, 2, random_bytes(18, 1)}}), ErrorCode::Corrupted, "no whole blocks"},
      {file_of({{"a", {8}, 0, data}}, 24), ErrorCode::Corrupted, "multiples of 24"},
      {file_of({}, 32, 1), ErrorCode::Unsupported, "version 1"},
      {file_of({}, 32, 0x03000000), ErrorCode::Unsupported, "byte order"},
      {Bytes().raw("GGUF").add(3u).add(~uint64_t{0}).add(uint64_t{0}).get(), ErrorCode::ResourceExhausted,
       "tensors"},
      {Bytes()
           .raw("GGUF")
           .add(3u)
           .add(uint64_t{0})
           .add(uint64_t{1})
           .text("k")
           .add(9u)
           .add(9u)
           .add(uint64_t{1})
           .add(9u)
           .add(uint64_t{1})
           .add(9u)
           .add(uint64_t{1})
           .add(9u)
           .add(uint64_t{1})
           .add(9u)
           .add(uint64_t{1})
           .get(),
       ErrorCode::Corrupted, "there is not"},
      {Bytes()
           .raw("GGUF")
           .add(3u)
           .add(uint64_t{0})
           .add(uint64_t{1})
           .text("k")
           .add(9u)
           .add(10u)
           .add(~uint64_t{0})
           .get(),
       ErrorCode::Corrupted, "longer than"},
  };
  for (const Case& c : cases) {
    const Error error = refusal(c.bytes);
    EXPECT_EQ(error.code, c.code) << c.words << ": " << error.message;
    EXPECT_NE(error.message.find(c.words), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("m.gguf"), std::string::npos) << error.message;
  }
}

}  // namespace
}  // namespace weft::data
