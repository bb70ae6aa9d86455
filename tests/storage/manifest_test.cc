#include "storage/manifest.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "storage/sha256.h"
#include "tests/storage/failing.h"

namespace weft::storage {
namespace {

Manifest example() {
  return {7,
          "run-1",
          120,
          0,
          7680,
          sha256_hex("graph"),
          "cpu avx512 \"quoted\" \xc3\xa9",
          {{dag::of_initializer("conv.weight", dag::StateSlot::Momentum),
            {dag::DType::F32, {8, 3, 3, 3}},
            sha256_hex("a")},
           {dag::of_initializer("conv.weight"), {dag::DType::F32, {8, 3, 3, 3}}, sha256_hex("b")},
           {dag::of_initializer("scale"), {dag::DType::F64, {}}, sha256_hex("c")}}};
}

TEST(Manifest, ParsesBack) {
  const auto parsed = parse_manifest(manifest_json(example()));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(*parsed, example());
}

// A weft that does not know of them would go on with another count of updates: it refuses the format.
TEST(Manifest, SkippedStepsMakeItOfFormat2) {
  EXPECT_NE(manifest_json(example()).find("\"format\": 1,"), std::string::npos);
  Manifest skipped = example();
  skipped.skipped_steps = 3;
  std::string text = manifest_json(skipped);
  EXPECT_NE(text.find("\"format\": 2,"), std::string::npos);
  const auto parsed = parse_manifest(text);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(*parsed, skipped);
  text.replace(text.find("\"skipped_steps\": 3"), 18, "\"skipped_steps\": 121");
  EXPECT_TRUE(fails_with(parse_manifest(text), ErrorCode::Corrupted, "`skipped_steps`"));
}

// A weft that does not know of them would go on without a word: it refuses the format.
TEST(Manifest, SettingsMakeItOfFormat3) {
  Manifest told = example();
  told.settings =
      RunSettings{.values = {{"seed", "3"}, {"optimizer.type", "adam \"quoted\""}}, .learning_rate = 0.1};
  const std::string text = manifest_json(told);
  EXPECT_NE(text.find("\"format\": 3,"), std::string::npos);
  const auto parsed = parse_manifest(text);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(*parsed, told);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    return changed.replace(changed.find(from), from.size(), to);
  };
  std::string many;
  for (size_t i = 0; i <= kManifestSettingsMax; ++i) many += "\"k" + std::to_string(i) + "\": \"\",";
  for (const auto& [changed, message] :
       {std::pair{with("\"learning_rate\": 0.1", "\"learning_rate\": null"), "`learning_rate`"},
        {with("\"learning_rate\": 0.1", "\"learning_rate\": \"0.1\""), "`learning_rate`"},
        {with("\"learning_rate\"", "\"rate\""), "`learning_rate`"},
        {with("\"settings\"", "\"sittings\""), "`settings`"},
        {with("\"seed\": \"3\"", "\"seed\": 3"), "`seed`"},
        {with("\"seed\": \"3\"", "\"seed\": \"" + std::string(5000, 'x') + "\""), "`seed`"},
        {with("\"seed\": \"3\"", many + "\"seed\": \"3\""), "`settings`"}})
    EXPECT_TRUE(fails_with(parse_manifest(changed), ErrorCode::Corrupted, message)) << message;
}

// A weft that does not know of replicas would take the count of updates from the steps: it refuses the
// format.
TEST(Manifest, ReplicasMakeItOfFormat4) {
  Manifest replicas = example();
  replicas.replica_updates = {30, 29, 120};
  TensorRecord second = replicas.tensors.front();
  second.key.replica = 2;
  second.key.slot = dag::StateSlot::Residue;
  replicas.tensors.push_back(second);
  const std::string text = manifest_json(replicas);
  EXPECT_NE(text.find("\"format\": 4,"), std::string::npos);
  const auto parsed = parse_manifest(text);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(*parsed, replicas);
  replicas.settings = RunSettings{.values = {{"seed", "3"}}, .learning_rate = 0.1};
  const auto told = parse_manifest(manifest_json(replicas));
  ASSERT_TRUE(told.has_value()) << told.error().message;
  EXPECT_EQ(*told, replicas);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const auto& [changed, message] :
       {std::pair{with("\"replica\": 2", "\"replica\": 3"), "is of a replica that there is not"},
        {with("\"replica\": 2", "\"replica\": 0"), "`replica`"},
        {with("\"replica\": 2", "\"replica\": 4000000000"), "`replica`"},
        {with("\"replica\": 2", "\"replica\": -1"), "`replica`"},
        {with("\"replica_updates\"", "\"updates\""), "`replica_updates`"},
        {with("\n  120\n", "\n  121\n"), "`replica_updates`"},
        {with("\n  120\n", "\n  \"a\"\n"), "`replica_updates`"}})
    EXPECT_TRUE(fails_with(parse_manifest(changed), ErrorCode::Corrupted, message)) << message;
}

TEST(Manifest, OtherFormatIsRefusedByNumber) {
  std::string text = manifest_json(example());
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 9");
  EXPECT_TRUE(fails_with(parse_manifest(text), ErrorCode::VersionMismatch, "format 9"));
}

TEST(Manifest, HostileTextsAreRefused) {
  const std::string good = manifest_json(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string hash = sha256_hex("a");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"null", "not a JSON object"},
      {good.substr(0, good.size() / 2), "not a JSON object"},
      {std::string(1'000'000, '['), "nested too deep"},
      {std::string(1'000'000, '{'), "nested too deep"},
      {R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}", "nested too deep"},
      {"{}", "`kind`"},
      {with("weft-checkpoint", "cake"), "another kind"},
      {with("\"step\": 120", "\"step\": -1"), "`step`"},
      {with("\"step\": 120", "\"step\": 1.5"), "`step`"},
      {with("\"step\": 120", "\"step\": 18446744073709551615"), "`step`"},
      {with("\"step\": 120", "\"step\": \"120\""), "`step`"},
      {with("\"step\": 120,", ""), "`step`"},
      {with("run-1", std::string(5000, 'x')), "`run`"},
      {with(sha256_hex("graph"), "short"), "`graph`"},
      {with(hash, "../../../etc/passwd"), "`sha256`"},
      {with(hash, "../" + hash.substr(3)), "`sha256`"},
      {with("\"momentum\"", "\"velocity\""), "unknown slot"},
      {with("\"momentum\"", "\"value\""), "stands twice"},
      {with("\"f32\"", "\"f33\""), "unknown dtype"},
      {with("\"shape\": []", "\"shape\": [1099511627776, 1099511627776]"), "too large"},
      {with("\"shape\": []", "\"shape\": [-1]"), "`shape`"},
      {with("\"shape\": []", "\"shape\": 3"), "`shape`"},
      {with("\"shape\": []", "\"shape\": [1" + std::string(3000, ' ') + "]"), ""},
      {with("\"tensors\"", "\"tenors\""), "`tensors`"},
  };
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    const auto parsed = parse_manifest(text);
    if (message.empty()) continue;
    EXPECT_TRUE(fails_with(parsed, ErrorCode::Corrupted, message));
  }
}

TEST(Manifest, LimitsHold) {
  EXPECT_TRUE(fails_with(parse_manifest(std::string(kManifestSizeMax + 1, ' ')), ErrorCode::ResourceExhausted,
                         "more than"));
  std::string text = manifest_json(example());
  std::string zeros = "\"tensors\": [0";
  for (uint64_t i = 0; i < kManifestTensorsMax; ++i) zeros += ",0";
  text.replace(text.find("\"tensors\": ["), text.size(), zeros + "]}");
  EXPECT_TRUE(fails_with(parse_manifest(text), ErrorCode::ResourceExhausted, "40001 tensors"));
}

TEST(Manifest, ChangedTextNeverCrashes) {
  const std::string good = manifest_json(example());
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed, 0);
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (uint64_t changes = 1 + rng.below(4); changes > 0; --changes)
      text[rng.below(text.size())] = static_cast<char>(rng.below(256));
    const auto parsed = parse_manifest(text);
    EXPECT_TRUE(!parsed || parsed->tensors.size() <= 3);
  }
}

}  // namespace
}  // namespace weft::storage
