// A second look at means: what is right passes to the bit, and whoever says something else is found.
#include "replicas/mean_check.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "replicas/agreement.h"
#include "replicas/mean_evidence.h"

namespace weft::replicas {
namespace {

// No cryptographic one, which nothing here tries to break.
Digest hash(std::span<const std::byte> bytes) {
  Digest digest;
  for (size_t lane = 0; lane < 4; ++lane) {
    uint64_t state = 0xcbf29ce484222325 + lane;
    for (const std::byte byte : bytes) state = (state ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
    std::memcpy(digest.bytes.data() + 8 * lane, &state, 8);
  }
  return digest;
}

constexpr uint32_t kReplicas = 3, kOwnerHere = 1;
constexpr uint64_t kSeed = 77;

// One tensor that three replicas agree about, again and again.
class Agreed {
 public:
  Agreed(compress::Codec codec, size_t elements) : codec_(codec), elements_(elements), owed_(elements) {
    residues_.assign(kReplicas, std::vector<float>(elements));
  }

  // A round after which the owner has taken, and sent, `times` what it should have.
  void agree(float times = 1) {
    ++round_;
    evidence_.assign(kReplicas, MeanEvidence(&hash));
    sent_.clear();
    Mean mean(elements_);
    for (uint32_t replica = 0; replica < kReplicas; ++replica) {
      std::vector<float> difference(elements_);
      for (float& value : difference) value = static_cast<float>(rng_.uniform()) - 0.4F;
      EXPECT_TRUE(pass_through(codec_, draw_of(kSeed, round_, 5, static_cast<uint16_t>(replica)), difference,
                               residues_[replica], scratch_));
      if (replica != kOwnerHere) evidence_[kOwnerHere].hear(5, replica, difference);
      mean.add(difference, 8 * (replica + 1));
      sent_.push_back(std::move(difference));
    }
    std::vector<float> taken(elements_);
    mean.take(taken);
    const bool owes = codec_.kind != compress::Kind::Dense;
    const std::vector<float> before = owes ? owed_ : std::vector<float>();
    EXPECT_TRUE(pass_through(codec_, draw_of(kSeed, round_, 5, kOwner), taken, owed_, scratch_));
    for (float& value : taken) value *= times;
    evidence_[kOwnerHere].take(5, before, taken);
    before_ = tree_;
    if (owes) evidence_[kOwnerHere].owe({owed_}, tree_);
    tree_ = evidence_[kOwnerHere].owed();
    for (MeanEvidence& evidence : evidence_) evidence.read(5, taken);
  }

  std::vector<ShownPiece> show(size_t piece) const {
    std::vector<ShownPiece> shown;
    for (uint32_t replica = 0; replica < kReplicas; ++replica)
      shown.push_back(evidence_[replica].show(5, piece, sent_[replica], piece, kReplicas));
    return shown;
  }
  MeanFinding look(size_t piece, const std::vector<ShownPiece>& shown) const {
    CheckedPiece checked{.codec = codec_,
                         .seed = kSeed,
                         .steps_before = round_,
                         .tensor = 5,
                         .range = range_of(piece, elements_),
                         .owner = kOwnerHere,
                         .samples = {8, 16, 24},
                         .leaf = piece,
                         .leaves = pieces_of(elements_)};
    if (before_) checked.owed_before = before_->root();
    if (tree_) checked.owed_after = tree_->root();
    const std::vector<const ShownPiece*> all{&shown[0], &shown[1], &shown[2]};
    return check_mean(checked, all, &take_piece, &hash);
  }
  MeanFinding look(size_t piece) const { return look(piece, show(piece)); }
  size_t pieces() const { return pieces_of(elements_); }
  bool owes() const { return codec_.kind != compress::Kind::Dense; }

 private:
  compress::Codec codec_;
  size_t elements_;
  uint64_t round_ = 0;
  Rng rng_{4, 0};
  PassScratch scratch_;
  std::vector<std::vector<float>> residues_, sent_;
  std::vector<float> owed_;
  std::vector<MeanEvidence> evidence_;
  std::shared_ptr<const HashTree> before_, tree_;
};

using Replicas = std::vector<uint32_t>;

class MeanCheck : public testing::TestWithParam<std::tuple<const char*, size_t>> {
 protected:
  Agreed agreed() const {
    return {compress::parse(std::get<0>(GetParam())).value(), std::get<1>(GetParam())};
  }
};

TEST_P(MeanCheck, WhatIsRightIsRightInEveryPieceOfEveryRound) {
  Agreed here = agreed();
  for (int round = 0; round < 3; ++round) {
    here.agree();
    for (size_t piece = 0; piece < here.pieces(); ++piece)
      EXPECT_TRUE(here.look(piece).is_right()) << "round " << round << ", piece " << piece;
  }
}

// Which all have taken: none of the others could know.
TEST_P(MeanCheck, AnOwnerThatTookAnotherMeanIsFound) {
  Agreed here = agreed();
  here.agree();
  here.agree(-1.0F);
  for (size_t piece = 0; piece < here.pieces(); ++piece) {
    const MeanFinding finding = here.look(piece);
    EXPECT_EQ(finding.wrong, Replicas{kOwnerHere}) << "piece " << piece;
    EXPECT_TRUE(finding.other.empty());
  }
}

// It says what fits afterwards: that it had owed something else.
TEST_P(MeanCheck, AnOwnerCannotSayLaterThatItHadOwedSomethingElse) {
  Agreed here = agreed();
  if (!here.owes()) return;
  here.agree();
  here.agree();
  const size_t piece = here.pieces() - 1;
  for (const bool is_before : {true, false}) {
    std::vector<ShownPiece> shown = here.show(piece);
    if (is_before)
      shown[kOwnerHere].owed[0] += 0.5F;
    else if (auto& path = shown[kOwnerHere].owed_after; path.empty())
      path.emplace_back();
    else
      path[0].bytes[3] ^= 1;
    EXPECT_EQ(here.look(piece, shown).wrong, Replicas{kOwnerHere});
  }
  std::vector<ShownPiece> shown = here.show(piece);
  shown[kOwnerHere].owed.clear();
  EXPECT_EQ(here.look(piece, shown).wrong, Replicas{kOwnerHere});
}

TEST_P(MeanCheck, WhoShowsAnotherDifferenceThanItSentStandsAgainstTheOwner) {
  Agreed here = agreed();
  here.agree();
  std::vector<ShownPiece> shown = here.show(0);
  shown[2].difference[0] += 1;
  const MeanFinding finding = here.look(0, shown);
  EXPECT_EQ(finding.other, Replicas{2});
  EXPECT_TRUE(finding.wrong.empty()) << "nobody can tell which of the two";
}

TEST_P(MeanCheck, WhoWasSentAnotherMeanStandsAgainstTheOwner) {
  Agreed here = agreed();
  here.agree();
  std::vector<ShownPiece> shown = here.show(0);
  shown[0].mean.bytes[0] ^= 1;
  const MeanFinding finding = here.look(0, shown);
  EXPECT_EQ(finding.other, Replicas{0});
  EXPECT_TRUE(finding.wrong.empty());
}

TEST_P(MeanCheck, WhatIsNotShownAtAllIsWrong) {
  Agreed here = agreed();
  here.agree();
  std::vector<ShownPiece> shown = here.show(0);
  shown[2].difference.pop_back();
  EXPECT_EQ(here.look(0, shown).wrong, Replicas{2});
  shown = here.show(0);
  shown[kOwnerHere].heard.pop_back();
  EXPECT_EQ(here.look(0, shown).wrong, Replicas{kOwnerHere});
  shown = {ShownPiece{}, ShownPiece{}, ShownPiece{}};
  EXPECT_FALSE(here.look(0, shown).is_right());
}

INSTANTIATE_TEST_SUITE_P(Codecs, MeanCheck,
                         testing::Combine(testing::Values("dense", "fp16", "bf16", "int8", "int4", "int3",
                                                          "int4z", "topk:0.05:int4", "topk:0.02:fp32+int4",
                                                          "randomk:0.5:fp16"),
                                          testing::Values(size_t{7}, kMeanPiece, 2 * kMeanPiece + 1000)));

TEST(HashTree, HasEachLeafWhereItIsAndNowhereElse) {
  for (const size_t leaves : {1, 2, 3, 5, 8, 13}) {
    std::vector<Digest> digests(leaves);
    for (size_t i = 0; i < leaves; ++i) digests[i].bytes[0] = static_cast<uint8_t>(i + 1);
    const HashTree tree(digests, &hash);
    for (size_t i = 0; i < leaves; ++i) {
      const std::vector<Digest> path = tree.path(i);
      EXPECT_LE(path.size(), kPathMax);
      for (size_t at = 0; at <= leaves; ++at)
        EXPECT_EQ(is_in_tree(tree.root(), digests[i], at, leaves, path, &hash), at == i) << leaves;
      EXPECT_FALSE(is_in_tree(tree.root(), Digest{}, i, leaves, path, &hash));
    }
  }
  EXPECT_TRUE(HashTree().empty());
}

}  // namespace
}  // namespace weft::replicas
