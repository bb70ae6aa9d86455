#include "configs/yaml.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::configs {
namespace {

::testing::AssertionResult refused(const Result<Node>& result, ErrorCode code, std::string_view part) {
  if (result) return ::testing::AssertionFailure() << "succeeded";
  if (result.error().code == code && result.error().message.find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(result.error().code) << ": " << result.error().message;
}

TEST(Yaml, NodesKnowWhereTheyStand) {
  const auto tree = parse_yaml("a: 1\nb:\n  - 'x'\n  - {c: y}\n", "f.yaml");
  ASSERT_TRUE(tree.has_value()) << tree.error().message;
  EXPECT_EQ(to_string(tree->find("a")->value.where), "f.yaml:1:4");
  const Node& list = tree->find("b")->value;
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_TRUE(list.items[0].quoted);
  EXPECT_EQ(to_string(list.items[1].find("c")->where), "f.yaml:4:6");
  EXPECT_EQ(list.items[1].find("c")->value.text, "y");
}

TEST(Yaml, AliasesAreWrittenOut) {
  const auto tree = parse_yaml("a: &x {b: 1}\nc: *x\n", "f");
  ASSERT_TRUE(tree.has_value()) << tree.error().message;
  EXPECT_EQ(tree->find("c")->value.find("b")->value.text, "1");
}

TEST(Yaml, BillionLaughsIsRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 15; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int k = 0; k < 9; ++k) text += ", " + last;
    text += "]\n";
  }
  EXPECT_TRUE(refused(parse_yaml(text, "f"), ErrorCode::ResourceExhausted, "more than 10000 values"));
}

TEST(Yaml, DepthSizeAndCountAreBounded) {
  EXPECT_TRUE(refused(parse_yaml(std::string(100'000, '['), "f"), ErrorCode::ResourceExhausted, "deep"));
  EXPECT_TRUE(refused(parse_yaml(std::string(100'000, '{'), "f"), ErrorCode::ResourceExhausted, "deep"));
  std::string nested;
  for (int i = 0; i < 300; ++i) nested += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_TRUE(refused(parse_yaml(nested, "f"), ErrorCode::ResourceExhausted, "deep"));
  std::string dashes;
  for (int i = 0; i < 50'000; ++i) dashes += "- ";
  EXPECT_TRUE(refused(parse_yaml(dashes, "f"), ErrorCode::ResourceExhausted, "deep"));
  EXPECT_TRUE(
      refused(parse_yaml(std::string(kYamlSizeMax + 1, ' '), "f"), ErrorCode::ResourceExhausted, "at most"));
  std::string list = "[";
  for (int i = 0; i < 20'000; ++i) list += "1,";
  EXPECT_TRUE(refused(parse_yaml(list + "1]", "f"), ErrorCode::ResourceExhausted, "values"));
}

TEST(Yaml, WhatWouldBeAmbiguousIsRefused) {
  EXPECT_TRUE(refused(parse_yaml("a: 1\na: 2\n", "f"), ErrorCode::InvalidArgument,
                      "f:2:1: key 'a' stands here for the second time, after f:1:1"));
  EXPECT_TRUE(refused(parse_yaml("[a]: 1\n", "f"), ErrorCode::InvalidArgument, "key must be"));
  EXPECT_TRUE(refused(parse_yaml("a: !!python/object x\n", "f"), ErrorCode::InvalidArgument, "tags"));
  EXPECT_TRUE(refused(parse_yaml("a: 1\n---\nb: 1\n", "f"), ErrorCode::InvalidArgument, "second document"));
  EXPECT_TRUE(refused(parse_yaml("a: &x [*x]\n", "f"), ErrorCode::InvalidArgument, "alias"));
  EXPECT_TRUE(refused(parse_yaml("a: *y\n", "f"), ErrorCode::InvalidArgument, "f:1:4"));
  EXPECT_TRUE(refused(parse_yaml("", "f"), ErrorCode::InvalidArgument, "empty"));
  EXPECT_TRUE(refused(parse_yaml("a: [1, 2\n", "f"), ErrorCode::InvalidArgument, "not YAML"));
  EXPECT_TRUE(refused(parse_yaml("a: b: c\n", "f"), ErrorCode::InvalidArgument, "f:1:"));
}

TEST(Yaml, AnyTextReturns) {
  const std::string alphabet = "ab: -[]{},&*!|>'\"%#?\n\t\\x01~";
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed, 0);
  for (int round = 0; round < 5000; ++round) {
    std::string text(rng.below(60), ' ');
    for (char& c : text) c = alphabet[rng.below(alphabet.size())];
    const auto tree = parse_yaml(text, "f");
    EXPECT_TRUE(tree || !tree.error().message.empty());
  }
}

TEST(Set, ReplacesAndCreates) {
  Node root = parse_yaml("a: {b: 1}\n", "f").value();
  ASSERT_TRUE(apply_set(root, "a.b=2").has_value());
  ASSERT_TRUE(apply_set(root, "c.d.e=[0.5, x=y]").has_value());
  EXPECT_EQ(root.find("a")->value.find("b")->value.text, "2");
  const Node& list = root.find("c")->value.find("d")->value.find("e")->value;
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(list.items[1].text, "x=y");
  EXPECT_EQ(to_string(list.items[1].where), "--set c.d.e");
}

TEST(Set, WrongFormsAreRefused) {
  const Node root = parse_yaml("a: {b: 1}\n", "f").value();
  for (const char* bad : {"", "a", "=1", "a..b=1", ".a=1", "a.b.c=1", "a=[1", "a=", "a.=1"}) {
    SCOPED_TRACE(bad);
    Node copy = root;
    const auto status = apply_set(copy, bad);
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("--set"), std::string::npos) << status.error().message;
  }
}

TEST(Suggestion, OnlyCloseWordsAreSuggested) {
  const std::vector<std::string> words = {"momentum", "nesterov"};
  EXPECT_EQ(suggestion("momemtum", words), " (did you mean 'momentum'?)");
  EXPECT_EQ(suggestion("epsilon", words), "; there are: momentum, nesterov");
}

}  // namespace
}  // namespace weft::configs
