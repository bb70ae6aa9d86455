// Rules for names: what they change, and that none that is written in a file of somebody else costs much.
#include "configs/rename.h"

#include <gtest/gtest.h>

#include "configs/job.h"

namespace weft::configs {
namespace {

std::string renamed(const std::string& pattern, const std::string& replacement, const std::string& name) {
  const auto rule = Rename::compile(pattern, replacement);
  EXPECT_TRUE(rule.has_value()) << (rule ? "" : rule.error().message);
  return rule ? rule->apply(name) : "";
}

TEST(Rename, ChangesEveryMatch) {
  EXPECT_EQ(renamed("^transformer\\.", "", "transformer.h.0.w"), "h.0.w");
  EXPECT_EQ(renamed("^transformer\\.", "", "my.transformer.h"), "my.transformer.h");
  EXPECT_EQ(renamed("^", "model.", "h.0.w"), "model.h.0.w");
  EXPECT_EQ(renamed("layers\\.(\\d+)\\.(\\w+)", "h.$1.new_$2", "layers.12.attn.w"), "h.12.new_attn.w");
  EXPECT_EQ(renamed("a", "b", "banana"), "bbnbnb");
  EXPECT_EQ(renamed("a", "b", std::string(2000, 'a')), std::string(2000, 'a')) << "no name";
}

TEST(Rename, WhatIsNoPatternIsRefused) {
  for (const std::string& pattern :
       {std::string(), std::string("("), std::string("[a"), std::string("*"), std::string("a{2"),
        std::string(257, 'a'), std::string("(a?){90000}"), std::string("((a?){99}){99}"),
        std::string("a{99999999999999999999}"), std::string("\\"), std::string("(a)\\1")})
    EXPECT_EQ(Rename::compile(pattern, "").error().code, ErrorCode::InvalidArgument) << pattern;
}

// The library goes as deep as a pattern and a name are long.
TEST(Rename, DeepPatternsAndLongNamesAreNoProblem) {
  const std::string deep = std::string(127, '(') + "a" + std::string(127, ')');
  EXPECT_EQ(renamed(deep, "b", "a"), "b");
  const std::string name(1024, 'a');
  EXPECT_EQ(renamed("(a|b)*c", "", name), name);
  EXPECT_EQ(renamed("(a?){900}", "", name), "");
  EXPECT_EQ(renamed("(a*)*b", "", name), name) << "not in as many ways as there are";
  EXPECT_EQ(renamed("(a+a+)+b", "", name), name);
  std::string classes;
  while (classes.size() < 250) classes += "[^x]";
  EXPECT_EQ(renamed(classes, "", name).size(), 1024u - 1024u / 63u * 63u);
}

// A job says it in its file, with the place of what is wrong.
TEST(Rename, AJobHasRulesInTheirOrder) {
  const auto parse = [](const std::string& init) {
    return parse_job(
        "model: m.onnx\ntask: predict\ninputs: {x: x}\ndata: {predict: {type: npz, path: p.npz}}\n"
        "batch_size: 1\noutput: o.npz\ninit: " +
            init + "\n",
        {}, {.source = "job.yaml", .folder = "f", .check_files = false});
  };
  const auto job =
      parse(R"({path: w.safetensors, rename: {"^b": "", "a": "c"}, transpose: ["*.w"], keep: [k]})");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  ASSERT_TRUE(job->init.has_value());
  EXPECT_EQ(job->init->file, "f/w.safetensors");
  using Rules = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(job->init->rename, (Rules{{"^b", ""}, {"a", "c"}}));
  EXPECT_EQ(job->init->transpose, std::vector<std::string>{"*.w"});
  EXPECT_EQ(job->init->keep, std::vector<std::string>{"k"});
  EXPECT_FALSE(job->init->partial);
  EXPECT_EQ(parse("w.safetensors")->init->file, "f/w.safetensors");
  for (const auto& [init, words] : std::vector<std::pair<std::string, std::string>>{
           {"{rename: {a: b}}", "`init.path` is missing"},
           {"{path: w, rename: [a]}", "must be a map"},
           {"{path: w, rename: {a: [b]}}", "must be a text"},
           {"{path: w, rename: {\"(\": b}}", "is no regular expression"},
           {"{path: w, keep: head}", "must be a list"},
           {"{path: w, renames: {a: b}}", "rename"},
           {"[w]", "`init`"}}) {
    const auto wrong = parse(init);
    ASSERT_FALSE(wrong.has_value()) << init;
    EXPECT_NE(wrong.error().message.find(words), std::string::npos) << init << ": " << wrong.error().message;
    EXPECT_NE(wrong.error().message.find("job.yaml:7:"), std::string::npos) << wrong.error().message;
  }
}

}  // namespace
}  // namespace weft::configs
