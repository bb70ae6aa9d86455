#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

using Ids = std::vector<TokenId>;
using Pair = std::pair<TokenId, TokenId>;

// A vocabulary over a few letters, with merges drawn at random among tokens that there are.
struct RandomModel {
  std::vector<std::string> tokens{"a", "b", "c"};
  std::map<Pair, std::pair<uint32_t, TokenId>> merges;  // rank, token
};
RandomModel random_model(Rng& rng) {
  RandomModel model;
  for (uint32_t rank = 0; rank < 40; ++rank) {
    const auto left = static_cast<TokenId>(rng.below(model.tokens.size()));
    const auto right = static_cast<TokenId>(rng.below(model.tokens.size()));
    const std::string joined = model.tokens[left] + model.tokens[right];
    const auto known = std::find(model.tokens.begin(), model.tokens.end(), joined);
    const auto token = static_cast<TokenId>(known - model.tokens.begin());
    if (known == model.tokens.end()) model.tokens.push_back(joined);
    model.merges[{left, right}] = {rank, token};
  }
  return model;
}
Bpe bpe_of(const RandomModel& model) {
  Vocabulary vocabulary;
  for (TokenId id = 0; id < model.tokens.size(); ++id)
    EXPECT_TRUE(vocabulary.add(model.tokens[id], id).has_value());
  std::map<uint32_t, std::pair<Pair, TokenId>> by_rank;
  for (const auto& [pair, merge] : model.merges) by_rank[merge.first] = {pair, merge.second};
  MergeTable table(by_rank.size());
  for (const auto& [rank, merge] : by_rank)
    EXPECT_TRUE(table.add(merge.first.first, merge.first.second, merge.second).has_value());
  return Bpe(std::move(vocabulary), std::move(table), {.is_byte_level = true});
}

// By definition: the pair of lowest rank, the leftmost of them, until there is none.
Ids by_definition(const RandomModel& model, std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<TokenId>(c - 'a'));
  while (true) {
    size_t best = ids.size();
    uint32_t rank = UINT32_MAX;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = model.merges.find({ids[i], ids[i + 1]});
      if (found == model.merges.end() || found->second.first >= rank) continue;
      best = i;
      rank = found->second.first;
    }
    if (best == ids.size()) return ids;
    ids[best] = model.merges.at({ids[best], ids[best + 1]}).second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, MergesAsItIsDefinedInShortAndLongPieces) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed, 1);
    const RandomModel model = random_model(rng);
    const Bpe bpe = bpe_of(model);
    for (const size_t size : {1, 2, 5, 20, 47, 48, 49, 60, 65, 300}) {
      std::string text;
      while (text.size() < size) text += static_cast<char>('a' + rng.below(3));
      Ids ids;
      bpe.encode(text, ids);
      ASSERT_EQ(ids, by_definition(model, text)) << "seed " << seed << ", " << text;
    }
  }
}

TEST(Vocabulary, FindsWhatWasAdded) {
  Vocabulary vocabulary(100'000);
  for (TokenId id = 0; id < 50'000; ++id)
    ASSERT_TRUE(vocabulary.add("token " + std::to_string(id * 7), 2 * id).has_value());
  for (TokenId id = 0; id < 50'000; ++id) {
    ASSERT_EQ(vocabulary.find("token " + std::to_string(id * 7)), 2 * id);
    ASSERT_EQ(vocabulary.text(2 * id), "token " + std::to_string(id * 7));
  }
  EXPECT_EQ(vocabulary.find("token"), std::nullopt);
  EXPECT_FALSE(vocabulary.contains(1));
  EXPECT_EQ(vocabulary.size(), 99'999u);
  EXPECT_EQ(vocabulary.add("token 7", 1).error().code, ErrorCode::Corrupted);
  EXPECT_EQ(vocabulary.add("new", 0).error().code, ErrorCode::Corrupted);
  EXPECT_EQ(vocabulary.add("new", 100'000).error().code, ErrorCode::OutOfRange);
  ASSERT_TRUE(vocabulary.add_unreachable("only decoded", 1).has_value());
  EXPECT_EQ(vocabulary.find("only decoded"), std::nullopt);
  EXPECT_EQ(vocabulary.text(1), "only decoded");
}

TEST(MergeTable, OfAPairThatComesTwiceTheLaterHolds) {
  MergeTable table(3);
  ASSERT_TRUE(table.add(1, 2, 3).has_value());
  ASSERT_TRUE(table.add(2, 1, 4).has_value());
  ASSERT_TRUE(table.add(1, 2, 3).has_value());
  EXPECT_EQ(table.find(1, 2).rank, 2u);
  EXPECT_EQ(table.find(2, 1).token, 4u);
  EXPECT_EQ(table.find(3, 3).rank, MergeTable::kNoRank);
}

}  // namespace
}  // namespace weft::text
