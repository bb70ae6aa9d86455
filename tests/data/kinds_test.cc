#include "data/kinds.h"

#include <gtest/gtest.h>

#include "tests/data/npz_samples.h"
#include "tests/data/reading.h"
#include "tests/support/photos.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;

std::string text_of(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string zip_of(const std::string& name) {
  return std::string("PK\x03\x04", 4) + std::string(22, '\0') + static_cast<char>(name.size()) +
         std::string(3, '\0') + name + std::string(30, '\0');
}

TEST(Kinds, AFileIsKnownByItsFirstBytes) {
  const Scratch scratch;
  const struct {
    std::string name, bytes;
    FileKind kind;
  } kCases[] = {
      {"m.onnx", "\x08\x07\x12\x07pytorch", FileKind::Onnx},
      {"m", "\x08\x0A\x3A\x10", FileKind::Onnx},
      {"a.npz", text_of(kSavez), FileKind::Npz},
      {"a.npy", "\x93NUMPY\x01", FileKind::Npy},
      {"m.pt", zip_of("m/data.pkl"), FileKind::Torch},
      {"old.pth", "\x80\x02}q", FileKind::Torch},
      {"x.pkl", "\x80\x04}q", FileKind::Pickle},
      {"t.parquet", "PAR1xxxx", FileKind::Parquet},
      {"t.h5", "\x89HDF\r\n\x1A\n", FileKind::Hdf5},
      {"t.csv", "a,b\n1,2\n", FileKind::Csv},
      {"t", "a;b\n1;2\n", FileKind::Csv},
      {"job.yaml", "model: m.onnx\ntask: train\n", FileKind::JobFile},
      {"job.onnx", "model: m.onnx\ntask: train\n", FileKind::JobFile},
      {"p.jpg", test::jpeg(test::picture(4, 4)), FileKind::Photo},
      {"i.idx", std::string("\0\0\x08\x03", 4), FileKind::Idx},
      {"w.safetensors", std::string("\x10\0\0\0\0\0\0\0{\"a\":{}}        ", 24), FileKind::Safetensors},
      {"z.zip", zip_of("notes.txt"), FileKind::Zip},
      {"i.gz", "\x1F\x8B\x08", FileKind::Gzip},
      {"d.jsonl", "{}", FileKind::Jsonl},
      {"d.json", "{\"a\": 1}\n{\"a\": 2}\n", FileKind::Jsonl},
      {"list.json", "[{\"a\": 1},\n{\"a\": 2}]\n", FileKind::Text},
      {"t.txt", "hello", FileKind::Text},
      {"empty", "", FileKind::Unknown},
      {"bytes", std::string("\xFE\0\x01\x02", 4), FileKind::Unknown},
  };
  for (const auto& one : kCases) EXPECT_EQ(kind_of(scratch.write(one.name, one.bytes)), one.kind) << one.name;
  EXPECT_EQ(kind_of(scratch.folder()), FileKind::Folder);
  EXPECT_EQ(kind_of(scratch.folder() / "none"), FileKind::Unknown);
}

TEST(Kinds, WhatIsNoJobIsToldWhatItIsAndWhatToWrite) {
  const Scratch scratch;
  const auto told = [&](const std::filesystem::path& path, std::string_view part) {
    return fails_with(check_is_job(path), ErrorCode::InvalidArgument, part);
  };
  EXPECT_TRUE(told(scratch.write("m.onnx", "\x08\x07\x12\x07pytorch"),
                   "is an ONNX model, not a job file; write one, as job.yaml:\n  model: "));
  EXPECT_TRUE(told(scratch.folder(), "is a folder, not a job file"));
  EXPECT_TRUE(told(scratch.folder(), "{type: images, path: "));
  EXPECT_TRUE(told(scratch.write("a.npy", "\x93NUMPY\x01"), "{type: npy, arrays: {x: "));
  EXPECT_TRUE(told(scratch.write("t.csv", "a,b\n1,2\n"), "{type: csv, path: "));
  EXPECT_TRUE(told(scratch.write("d.jsonl", "{\"output\": 1, \"instruction\": 2}"),
                   "tokenizer.json, prompt: instruction, completion: output, sequence_length: "));
  EXPECT_TRUE(told(scratch.write("e.jsonl", "{\"messages\": []}"), "tokenizer.json, messages: messages, "));
  EXPECT_TRUE(told(scratch.write("m.pt", zip_of("m/data.pkl")), "torch.load("));
  EXPECT_TRUE(told(scratch.write("t.parquet", "PAR1"), "pandas.read_parquet("));
  EXPECT_TRUE(check_is_job(scratch.write("job.yaml", "model: m.onnx\n")).has_value());
  EXPECT_TRUE(check_is_job(scratch.write("odd", "whatever")).has_value());
}

}  // namespace
}  // namespace weft::data
