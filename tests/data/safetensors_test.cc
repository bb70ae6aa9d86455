// Files of tensors: what is written is read with the same bits, the layout is the published one, and whatever
// else a header says is refused in little time and memory.
#include "data/safetensors.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/rng.h"
#include "tests/support/peak_memory.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {
namespace fs = std::filesystem;

using Tensors = std::map<std::string, dag::Tensor>;

dag::Tensor random_tensor(dag::DType dtype, dag::Shape shape, uint64_t seed) {
  dag::Tensor tensor(dag::TensorSpec{dtype, std::move(shape)});
  Rng rng(seed, 1);
  for (std::byte& byte : tensor.mutable_bytes())
    byte = static_cast<std::byte>(dtype == dag::DType::Bool ? rng.below(2) : rng.below(256));
  return tensor;
}

std::string written(const Tensors& tensors) {
  std::vector<NamedSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.spec()});
  std::string file;
  const Status status = write_safetensors(
      specs, [&](const std::string& name, const ByteSink& sink) { return sink(tensors.at(name).bytes()); },
      [&](std::span<const std::byte> bytes) -> Status {
        file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return {};
      });
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
  return file;
}

std::string with_length(const std::string& json) {
  std::string head(8, '\0');
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(json.size() >> (8 * i));
  return head + json;
}

class Safetensors : public testing::Test {
 protected:
  fs::path file(const std::string& name, const std::string& bytes) {
    scratch_.write(name, bytes);
    return scratch_.folder() / name;
  }
  void expect_equal(const TensorFiles& files, const Tensors& tensors) {
    ASSERT_EQ(files.tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const auto whole = files.whole(name);
      ASSERT_TRUE(whole.has_value()) << name;
      EXPECT_EQ(whole->spec(), tensor.spec()) << name;
      EXPECT_TRUE(std::equal(whole->bytes().begin(), whole->bytes().end(), tensor.bytes().begin(),
                             tensor.bytes().end()))
          << name;
      std::vector<std::byte> pieces;
      const Status read = files.read(name, [&](std::span<const std::byte> bytes) -> Status {
        pieces.insert(pieces.end(), bytes.begin(), bytes.end());
        return {};
      });
      ASSERT_TRUE(read.has_value()) << name;
      EXPECT_TRUE(std::equal(pieces.begin(), pieces.end(), tensor.bytes().begin(), tensor.bytes().end()))
          << name;
    }
  }
  // What a file is refused with.
  Error refusal(const fs::path& path) {
    const auto opened = TensorFiles::open(path);
    EXPECT_FALSE(opened.has_value()) << path;
    return opened ? Error{} : opened.error();
  }
  void expect_refused(const std::string& json, const std::string& data, ErrorCode code,
                      const std::string& words) {
    const Error error = refusal(file("hostile.safetensors", with_length(json) + data));
    EXPECT_EQ(error.code, code) << json << ": " << error.message;
    EXPECT_NE(error.message.find(words), std::string::npos) << json << ": " << error.message;
    EXPECT_NE(error.message.find("hostile.safetensors"), std::string::npos) << error.message;
  }
  test::Scratch scratch_;
};

TEST_F(Safetensors, WhatIsWrittenIsReadWithTheSameBits) {
  using enum dag::DType;
  Tensors tensors;
  uint64_t seed = 0;
  for (const dag::DType dtype : {F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64, Bool}) {
    const std::string name(to_string(dtype));
    tensors["of " + name] = random_tensor(dtype, {3, 5, 7}, ++seed);
    tensors[name + ".scalar"] = random_tensor(dtype, {}, ++seed);
    tensors[name + ".empty"] = random_tensor(dtype, {4, 0, 2}, ++seed);
  }
  tensors["\xC3\xA4 \"quoted\"\\\n\x01/.."] = random_tensor(F32, {2}, ++seed);
  tensors["large"] = random_tensor(F32, {600, 1000}, ++seed);  // of several pieces
  const auto files = TensorFiles::open(file("w.safetensors", written(tensors)));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  expect_equal(*files, tensors);
}

TEST_F(Safetensors, NoTensorAtAllIsAFileToo) {
  const auto files = TensorFiles::open(file("w.safetensors", written({})));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_TRUE(files->tensors().empty());
}

// The wider elements come first, then names; the header is filled with spaces.
TEST_F(Safetensors, TheLayoutIsThePublishedOne) {
  const std::vector<float> b{1, -2};
  const std::vector<int64_t> n{3};
  Tensors tensors{{"b", dag::make_tensor({2}, b)},
                  {"a.weight", dag::make_tensor({1, 2}, b)},
                  {"n", dag::make_tensor({1}, n)}};
  dag::Tensor half(dag::TensorSpec{dag::DType::F16, {1}}), flag(dag::TensorSpec{dag::DType::Bool, {}});
  half.mutable_as<uint16_t>()[0] = 0x3C00;
  flag.mutable_bytes()[0] = std::byte{1};
  tensors["a"] = flag;
  tensors["h"] = half;
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                       R"("a.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
                       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
                       R"("h":{"dtype":"F16","shape":[1],"data_offsets":[24,26]},)"
                       R"("a":{"dtype":"BOOL","shape":[],"data_offsets":[26,27]}})";
  while (header.size() % 8 != 0) header += ' ';
  const std::string data("\3\0\0\0\0\0\0\0\0\0\x80\x3F\0\0\0\xC0\0\0\x80\x3F\0\0\0\xC0\0\x3C\1", 27);
  EXPECT_EQ(written(tensors), with_length(header) + data);
}

TEST_F(Safetensors, KeysMayComeInAnyOrderAndTensorsToo) {
  const auto files = TensorFiles::open(
      file("w.safetensors", with_length("{\n"
                                        R"("b" : {"data_offsets":[4, 8],"shape":[1],"dtype":"F32"},)"
                                        R"("a":{"shape":[4],"dtype":"U8","data_offsets":[0,4]},)"
                                        R"("__metadata__":{"x":"y","shape":""}} )") +
                                "abcdefgh"));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_EQ(std::memcmp(files->whole("b")->bytes().data(), "efgh", 4), 0);
  EXPECT_EQ(std::memcmp(files->whole("a")->bytes().data(), "abcd", 4), 0);
}

TEST_F(Safetensors, HeadersThatLieAreRefused) {
  const auto corrupted = [&](const std::string& json, const std::string& words) {
    expect_refused(json, "abcdefgh", ErrorCode::Corrupted, words);
  };
  const auto one = [](const std::string& fields) { return R"({"w":{)" + fields + "}}"; };
  const auto placed = [&](const std::string& shape, const std::string& offsets) {
    return one(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets);
  };
  corrupted("", "brace");
  corrupted("[]", "brace");
  corrupted(" {}", "brace");
  corrupted("{", "no JSON");
  corrupted("{}{}", "no JSON");
  corrupted("{}", "the last 8 bytes");
  corrupted(placed("[2]", "[0,8]") + "x", "no JSON");
  corrupted(R"({"w")", "no JSON");
  corrupted("{\"\xFF\":{}}", "no JSON");
  corrupted(R"({"w":5})", "'w' is not {");
  corrupted(R"({"w":[]})", "'w' is not {");
  corrupted(R"({"":{}})", "1 to 1024");
  corrupted(R"({"w":{"w":{"w":{}}}})", "a key 'w'");
  corrupted(R"({"w":{}})", "no `dtype`");
  corrupted(one(R"("dtype":"F32","shape":[2])"), "no `data_offsets`");
  corrupted(one(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), "`shape` twice");
  corrupted(one(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "'w' is not {");
  corrupted(one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "'w' is not {");
  corrupted(one(R"("dtype":"F32","shape":{},"data_offsets":[0,8])"), "'w' is not {");
  corrupted(placed("[2]", "[0]"), "'w' is not {");
  corrupted(placed("[2]", "[0,8,8]"), "'w' is not {");
  corrupted(placed("[-2]", "[0,8]"), "'w' is not {");
  corrupted(placed("[2.0]", "[0,8]"), "'w' is not {");
  corrupted(placed("[2]", "[0,1e400]"), "no JSON");
  corrupted(placed("[2]", "[0,99999999999999999999999]"), "'w' is not {");
  corrupted(placed("[18446744073709551615]", "[0,8]"), "nothing can be");
  corrupted(placed("[1099511627776,1099511627776]", "[0,8]"), "too large");
  corrupted(placed("[4294967296,4294967296,2]", "[0,8]"), "too large");
  corrupted(placed("[3]", "[0,8]"), "takes 12 bytes, and has 8");
  corrupted(placed("[2]", "[8,0]"), "lies at bytes 8 to 0 of 8");
  corrupted(placed("[2]", "[8,16]"), "lies at bytes 8 to 16 of 8");
  corrupted(placed("[2]", "[18446744073709551608,0]"), "lies at bytes");
  corrupted(placed("[1]", "[4,8]"), "the bytes 0 to 4");
  corrupted(placed("[1]", "[0,4]"), "the last 4 bytes");
  corrupted(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
            R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            "'b' overlaps");
  corrupted(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            "two tensors 'a'");
  corrupted(R"({"__metadata__":{"a":{}}})", "no map of texts");
  corrupted(R"({"__metadata__":[]})", "no map of texts");
  corrupted(R"({"__metadata__":{},"__metadata__":{}})", "twice");
  corrupted(R"({")" + std::string(2000, 'n') + R"(":{}})", "2000 bytes");
  std::string axes = "[1";
  for (int i = 0; i < 32; ++i) axes += ",1";
  corrupted(placed(axes + "]", "[0,4]"), "32 axes");
  corrupted(std::string(5000, '{'), "no JSON");
  corrupted(placed(std::string(5000, '['), ""), "'w' is not {");
}

TEST_F(Safetensors, TypesThatWeftHasNotAreNamed) {
  for (const char* type : {"F8_E4M3", "F8_E5M2", "F4", "C64", "f32", ""})
    expect_refused(R"({"h.0.w":{"dtype":")" + std::string(type) + R"(","shape":[8],"data_offsets":[0,8]}})",
                   "abcdefgh", ErrorCode::Unsupported,
                   "tensor 'h.0.w' has elements of type '" + std::string(type) + "'");
}

TEST_F(Safetensors, LengthsThatLieAreRefused) {
  EXPECT_EQ(refusal(file("a", "")).code, ErrorCode::Corrupted);
  EXPECT_EQ(refusal(file("b", std::string(7, '\0'))).code, ErrorCode::Corrupted);
  EXPECT_EQ(refusal(file("c", std::string(8, '\xFF'))).code, ErrorCode::Corrupted);
  EXPECT_EQ(refusal(file("d", with_length("{}").substr(0, 9))).code, ErrorCode::Corrupted);
  EXPECT_EQ(refusal(scratch_.folder() / "none").code, ErrorCode::NotFound);
  EXPECT_EQ(refusal(scratch_.folder()).code, ErrorCode::InvalidArgument);
}

// The worst headers: as long as one is read, and longer.
TEST_F(Safetensors, ALargeHeaderCostsLittle) {
  const auto cheap = [&](const char* what, const std::string& json, ErrorCode code) {
    const fs::path path = file("large.safetensors", with_length(json));
    const std::clock_t begin = std::clock();
    const test::PeakMemory memory;
    const Error error = refusal(path);
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_EQ(error.code, code) << what << ": " << error.message.substr(0, 300);
    EXPECT_LE(error.message.size(), 500u) << what;
    EXPECT_LE(memory.bytes(), size_t{64} << 20) << what;
    std::printf("%-24s %4.0f ms, %zu MB\n", what, 1e3 * took, memory.bytes() >> 20);
  };
  const size_t longest = kTensorHeaderMax;
  const auto filled = [&](const std::string& begin, const std::string& part) {
    std::string json = begin;
    while (json.size() + part.size() < longest) json += part;
    return json;
  };
  cheap("100 MB", "{" + std::string(100'000'000, ' '), ErrorCode::ResourceExhausted);
  cheap("spaces", "{" + std::string(longest - 1, ' '), ErrorCode::Corrupted);
  cheap("one text", "{\"" + std::string(longest - 2, 'x'), ErrorCode::ResourceExhausted);
  cheap("texts", filled("{\"__metadata__\":{", "\"" + std::string((1 << 20) - 1, 'x') + "\":\"\","),
        ErrorCode::Corrupted);
  cheap("escapes", filled("{\"__metadata__\":{", R"("\u0001\u0002":"\ud83d\ude00",)"), ErrorCode::Corrupted);
  cheap("numbers", filled(R"({"w":{"shape":[)", "1,"), ErrorCode::Corrupted);
  std::string tensors = "{";
  for (size_t i = 0; tensors.size() + 100 < longest; ++i)
    tensors += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  cheap("tensors", tensors, ErrorCode::Corrupted);
  std::string twice = "{";
  for (size_t i = 0; twice.size() + 100 < longest; ++i)
    twice += "\"" + std::to_string(i / 2) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  twice.back() = '}';
  cheap("names twice", twice, ErrorCode::Corrupted);
}

TEST_F(Safetensors, ShardsAreReadByTheirIndex) {
  const Tensors first{{"a", random_tensor(dag::DType::F32, {4, 5}, 1)}},
      second{{"b", random_tensor(dag::DType::BF16, {3}, 2)}, {"c", random_tensor(dag::DType::I64, {1}, 3)}};
  file("model-00001-of-00002.safetensors", written(first));
  file("model-00002-of-00002.safetensors", written(second));
  const std::string map = R"("weight_map":{"a":"model-00001-of-00002.safetensors",)"
                          R"("c":"model-00002-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";
  const auto index = [&](const std::string& text) { return file("model.safetensors.index.json", text); };
  const auto files =
      TensorFiles::open(index(R"({"metadata":{"total_size":94,"x":[{"y":null}]},)" + map + "}"));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  Tensors all = first;
  all.insert(second.begin(), second.end());
  expect_equal(*files, all);
  EXPECT_EQ(files->paths().size(), 2u);

  const auto expect = [&](const std::string& text, ErrorCode code, const std::string& words) {
    const Error error = refusal(index(text));
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
  };
  expect("", ErrorCode::Corrupted, "no JSON");
  expect("[]", ErrorCode::Corrupted, "no map");
  expect("{}", ErrorCode::Corrupted, "no `weight_map`");
  expect(R"({"weight_map":"a"})", ErrorCode::Corrupted, "no map");
  expect(R"({"weight_map":{"a":1}})", ErrorCode::Corrupted, "no map");
  expect("{" + map + "," + map + "}", ErrorCode::Corrupted, "no map");
  expect(R"({"weight_map":{"a":"model-00001-of-00002.safetensors","a":"x.safetensors"}})",
         ErrorCode::Corrupted, "'a' twice");
  expect(R"({"weight_map":{"b":"model-00001-of-00002.safetensors"}})", ErrorCode::Corrupted, "'b' lies in");
  expect(R"({"weight_map":{"b":"model-00002-of-00002.safetensors"}})", ErrorCode::Corrupted,
         "does not say where 'c' lies");
  expect(R"({"weight_map":{"a":"none.safetensors"}})", ErrorCode::NotFound, "none.safetensors");
  expect(R"({"metadata":)" + std::string(100, '[') + std::string(100, ']') + "}", ErrorCode::Corrupted,
         "nested");
  for (const char* name : {"../w.safetensors", "/etc/w.safetensors", "a/w.safetensors", ".safetensors", "..",
                           "passwd", R"(a\\w.safetensors)", R"(w\u0000.safetensors)", "c:w.safetensors"})
    expect(R"({"weight_map":{"a":")" + std::string(name) + R"("}})", ErrorCode::PermissionDenied,
           "only files beside the index");
}

TEST_F(Safetensors, NamesAndSizesThatCannotBeWrittenAreSaid) {
  const auto code_of = [](std::vector<NamedSpec> specs, size_t bytes) {
    const Status status = write_safetensors(
        std::move(specs),
        [&](const std::string&, const ByteSink& sink) { return sink(std::vector<std::byte>(bytes)); },
        [](std::span<const std::byte>) { return Status{}; });
    return status ? std::optional<ErrorCode>() : status.error().code;
  };
  const dag::TensorSpec spec{dag::DType::F32, {2}};
  EXPECT_EQ(code_of({{"a", spec}}, 8), std::nullopt);
  EXPECT_EQ(code_of({{"a", spec}}, 4), ErrorCode::Corrupted);
  EXPECT_EQ(code_of({{"a", spec}}, 12), ErrorCode::Corrupted);
  EXPECT_EQ(code_of({{"a", spec}, {"a", spec}}, 8), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of({{"", spec}}, 8), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of({{"__metadata__", spec}}, 8), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of({{"\xFF", spec}}, 8), ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace weft::data
