// What an assignment says of how blobs come of tensors on this machine: made where they are there, and
// checked.
#include "peer/service/kept_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "storage/sha256.h"
#include "tests/support/scratch.h"

namespace weft::peer {
namespace {

using Bytes = std::vector<std::byte>;

class KeptWeightsTest : public ::testing::Test {
 protected:
  KeptWeightsTest() {
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i);
    write(source_);
    index_ = *weights::WeightIndex::open({.folder = scratch_.folder()});
    index_->wait();
  }
  void write(const Bytes& bytes) const {
    const std::string header = R"({"w":{"dtype":"U8","shape":[200],"data_offsets":[0,200]}})";
    const uint64_t length = header.size();
    std::ofstream file(scratch_.folder() / "m.safetensors", std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  static Digest digest_of(const Bytes& bytes) { return *digest_from_hex(storage::sha256_hex(bytes)); }
  Bytes part(size_t first) const {
    return {source_.begin() + static_cast<std::ptrdiff_t>(first),
            source_.begin() + static_cast<std::ptrdiff_t>(first) + 50};
  }
  proto::AssignStage says(proto::JobNumber run, const Digest& blob, size_t first) const {
    proto::AssignStage assignment;
    assignment.run = run;
    assignment.recipes.push_back({blob,
                                  {.source = digest_of(source_),
                                   .source_size = 200,
                                   .cut = dag::Recipe::Cut{.first = first, .size = 50}}});
    return assignment;
  }
  // What comes of it; the error's code where nothing does.
  std::variant<Bytes, ErrorCode> read(KeptWeights& kept, const Digest& blob) {
    std::optional<std::variant<Bytes, ErrorCode>> answer;
    kept.read(blob, [&](Result<net::SharedBytes> bytes) {
      if (bytes)
        answer = Bytes(bytes->bytes.begin(), bytes->bytes.end());
      else
        answer = bytes.error().code;
    });
    EXPECT_TRUE(loop_.run_until(std::chrono::seconds(60), [&] { return answer.has_value(); }));
    return answer.value_or(ErrorCode::Timeout);
  }

  test::Scratch scratch_;
  Bytes source_ = Bytes(200);
  std::shared_ptr<const weights::WeightIndex> index_;
  net::Loop loop_;
};

TEST_F(KeptWeightsTest, MakesWhatARecipeSays) {
  KeptWeights kept(loop_, index_);
  const Digest blob = digest_of(part(30));
  EXPECT_FALSE(kept.has(blob, 50)) << "nobody said how";
  kept.learn(says(1, blob, 30));
  EXPECT_FALSE(kept.has(blob, 51)) << "a tensor of another size";
  ASSERT_TRUE(kept.has(blob, 50));
  EXPECT_EQ(std::get<Bytes>(read(kept, blob)), part(30));
  kept.learn({.run = 1});
  EXPECT_FALSE(kept.has(blob, 50)) << "a later assignment of the run stands for the earlier";
  EXPECT_TRUE(kept.has(digest_of(source_), 200));
}

TEST_F(KeptWeightsTest, GivesNothingThatHasAnotherHash) {
  KeptWeights kept(loop_, index_);
  const Digest blob = digest_of(part(30));
  kept.learn(says(1, blob, 31));
  ASSERT_TRUE(kept.has(blob, 50));
  EXPECT_EQ(std::get<ErrorCode>(read(kept, blob)), ErrorCode::OutOfRange);
  kept.learn(says(1, blob, 30));
  ASSERT_TRUE(kept.has(blob, 50)) << "the file is what it was";
  write(Bytes(200));
  EXPECT_EQ(std::get<ErrorCode>(read(kept, blob)), ErrorCode::Corrupted);
  EXPECT_FALSE(kept.has(blob, 50));
}

TEST_F(KeptWeightsTest, WithoutAFolderHasNothing) {
  KeptWeights kept(loop_, nullptr);
  const Digest blob = digest_of(part(30));
  kept.learn(says(1, blob, 30));
  EXPECT_FALSE(kept.has(blob, 50));
}

}  // namespace
}  // namespace weft::peer
