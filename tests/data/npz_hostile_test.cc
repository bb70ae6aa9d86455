// npz files that lie. A good file is made by the writer, and then one thing in it is changed.
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "data/dataset.h"
#include "data/npz_writer.h"
#include "tests/data/npz_samples.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;

// One array x f32[2], stored: local header, "x.npy", 128 bytes of .npy header, 8 bytes; directory; end.
std::string good() {
  const std::vector<float> values = {1, 2};
  const auto bytes = npz_bytes(std::vector<NpzArray>{{"x", dag::make_tensor({2}, values)}}).value();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
std::string put(std::string file, size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof value);
  return file;
}

struct Offsets {
  size_t directory = 0;
  size_t end = 0;
};
Offsets offsets_of(const std::string& file) { return {file.find("PK\x01\x02"), file.find("PK\x05\x06")}; }

TEST(NpzHostile, OneLieIsEnough) {
  const std::string file = good();
  const auto [directory, end] = offsets_of(file);
  const size_t payload = directory - 8;
  struct Case {
    std::string what;
    std::string file;
    ErrorCode code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"empty", "", ErrorCode::Corrupted, "too short"},
      {"text", std::string(100, 'a'), ErrorCode::Corrupted, "no end record"},
      {"cut", file.substr(0, file.size() - 1), ErrorCode::Corrupted, "no end record"},
      {"directory beyond the file", put<uint32_t>(file, end + 16, 0x7FFFFFFF), ErrorCode::Corrupted,
       "outside the file"},
      {"directory too long", put<uint32_t>(file, end + 12, 0x7FFFFFFF), ErrorCode::Corrupted,
       "outside the file"},
      {"60000 entries", put<uint16_t>(file, end + 10, 60000), ErrorCode::ResourceExhausted, "60000 entries"},
      {"2 entries where 1 is", put<uint16_t>(file, end + 10, 2), ErrorCode::Corrupted, "cut off"},
      {"no entries", put<uint16_t>(file, end + 10, 0), ErrorCode::InvalidArgument, "no arrays"},
      {"encrypted", put<uint16_t>(file, directory + 8, 1), ErrorCode::Unsupported, "encrypted"},
      {"bzip2", put<uint16_t>(file, directory + 10, 12), ErrorCode::Unsupported, "method 12"},
      {"deflated, it says", put<uint16_t>(file, directory + 10, 8), ErrorCode::Corrupted, ""},
      {"compressed size", put<uint32_t>(file, directory + 20, 0x10000000), ErrorCode::Corrupted,
       "larger than the file"},
      {"size", put<uint32_t>(file, directory + 24, 0x10000000), ErrorCode::Corrupted, "declares"},
      {"bomb", put<uint32_t>(put<uint16_t>(file, directory + 10, 8), directory + 24, 0xFFFFFFF0),
       ErrorCode::Corrupted, "declares"},
      {"zip64 sizes without the field", put<uint32_t>(file, directory + 24, 0xFFFFFFFF), ErrorCode::Corrupted,
       ""},
      {"local header elsewhere", put<uint32_t>(file, directory + 42, 1), ErrorCode::Corrupted,
       "where it should be"},
      {"local header far away", put<uint32_t>(file, directory + 42, 0x7FFFFFFF), ErrorCode::Corrupted,
       "outside the file"},
      {"local name too long", put<uint16_t>(file, 26, 0xFFFF), ErrorCode::Corrupted, "larger than the file"},
      {"name not .npy", put<char>(file, directory + 46 + 4, 'x'), ErrorCode::Unsupported, "not an array"},
      {"checksum", put<float>(file, payload, 3), ErrorCode::Corrupted, "checksum"},
      {"not npy", put<char>(file, 35, 'x'), ErrorCode::Corrupted, "not a .npy"},
      {"npy version", put<char>(file, 35 + 6, 9), ErrorCode::Unsupported, "version 9"},
      {"npy header too long", put<uint16_t>(file, 35 + 8, 0xFFFF), ErrorCode::Corrupted, "ends too early"},
      {"npy shape", put<char>(file, file.find("(2,)") + 1, '9'), ErrorCode::Corrupted, "needs 36 bytes"},
      {"npy without sample axis", put<uint32_t>(file, file.find("(2,)"), 0x29202028),
       ErrorCode::InvalidArgument, "no sample axis"},
      {"npy without elements", put<char>(file, file.find("(2,)") + 1, '0'), ErrorCode::InvalidArgument,
       "no elements"},
      {"npy object", put<uint16_t>(file, file.find("<f4") + 1, 0x4F4F), ErrorCode::Unsupported, "dtype"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const Scratch scratch;
    const auto result = open_npz({scratch.write("data.npz", c.file)});
    EXPECT_TRUE(fails_with(result, c.code, c.message));
    if (!result) {
      EXPECT_NE(result.error().message.find("data.npz: "), std::string::npos) << result.error().message;
    }
  }
}

TEST(NpzHostile, EntriesThatShareBytesAreRefused) {
  const std::vector<float> values = {1, 2};
  const auto tensor = dag::make_tensor({2}, values);
  const auto bytes = npz_bytes(std::vector<NpzArray>{{"x", tensor}, {"y", tensor}}).value();
  std::string file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t second = file.find("PK\x01\x02", offsets_of(file).directory + 4);
  const Scratch scratch;
  EXPECT_TRUE(fails_with(open_npz({scratch.write("data.npz", put<uint32_t>(file, second + 42, 0))}),
                         ErrorCode::Corrupted, "overlap"));
}

TEST(NpzHostile, ArraysOfUnequalLengthAreRefused) {
  const std::vector<float> two = {1, 2};
  const std::vector<float> three = {1, 2, 3};
  const auto bytes =
      npz_bytes(std::vector<NpzArray>{{"x", dag::make_tensor({2}, two)}, {"y", dag::make_tensor({3}, three)}})
          .value();
  const Scratch scratch;
  EXPECT_TRUE(fails_with(open_npz({scratch.write("data.npz", bytes)}), ErrorCode::InvalidArgument,
                         "'y' has 3 samples and 'x' has 2"));
}

// Any number of changed bytes: an error or a data set, never a crash; under the sanitizers this is where they
// look.
template <size_t N>
void expect_survives_changes(const unsigned char (&original)[N], uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Scratch scratch;
  Rng rng(seed, 0);
  for (int round = 0; round < 400; ++round) {
    std::string file(reinterpret_cast<const char*>(original), N);
    for (uint64_t changes = 1 + rng.below(3); changes > 0; --changes)
      file[rng.below(N)] = static_cast<char>(rng.below(256));
    if (rng.below(4) == 0) file.resize(rng.below(N));
    const auto dataset = open_npz({scratch.write("data.npz", file)});
    if (!dataset) continue;
    for (const Column& column : (*dataset)->columns())
      read_column(**dataset, column.name, {0, (*dataset)->sample_count() - 1});
  }
}
TEST(NpzHostile, ChangedStoredFileNeverCrashes) { expect_survives_changes(kSavez, 1); }
TEST(NpzHostile, ChangedCompressedFileNeverCrashes) { expect_survives_changes(kSavezCompressed, 2); }
TEST(NpzHostile, ChangedStreamedFileNeverCrashes) { expect_survives_changes(kStreamed, 3); }

}  // namespace
}  // namespace weft::data
