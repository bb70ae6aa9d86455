// What a user submits to hurt: each costs its own job, with words, and nobody else.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/attacks/siege.h"
#include "tests/attacks/submitter.h"
#include "tests/onnx/models.h"

namespace weft::attacks {
namespace {

namespace fs = std::filesystem;
using onnx::testing::attribute;
using onnx::testing::ModelMaker;
namespace pb = onnx::pb;

// The embedded text, the average of which is the loss; `add` names what stands between.
ModelMaker text_model(const std::function<std::string(ModelMaker&, const std::string&)>& add) {
  ModelMaker maker;
  maker.input("tokens", {-1, 4}, pb::TensorProto::INT64);
  maker.weight("embedding", {256, 8}, 0.01f);
  attribute(maker.node("Gather", {"embedding", "tokens"}, {"embedded"}), "axis", int64_t{0});
  const std::string last = add(maker, "embedded");
  auto& mean = maker.node("ReduceMean", {last}, {"loss"});
  attribute(mean, "keepdims", int64_t{0});
  maker.output("loss");
  return maker;
}

std::string chain_of(const std::string& op, int count) {
  return text_model([&](ModelMaker& maker, const std::string& from) {
           std::string last = from;
           for (int i = 0; i < count; ++i) {
             const std::string next = "v" + std::to_string(i);
             maker.node(op, {last}, {next});
             last = next;
           }
           return last;
         })
      .bytes();
}

// `count` weights that all lie in one range of a file beside the model, and are all added up.
std::string shared_range_model(int count, int64_t elements) {
  return text_model([&](ModelMaker& maker, const std::string& from) {
           std::string last = from;
           for (int i = 0; i < count; ++i) {
             const std::string name = "w" + std::to_string(i), sum = "s" + std::to_string(i),
                               next = "v" + std::to_string(i);
             auto& tensor = *maker.graph().add_initializer();
             tensor.set_name(name);
             tensor.set_data_type(pb::TensorProto::FLOAT);
             tensor.add_dims(elements);
             tensor.set_data_location(pb::TensorProto::EXTERNAL);
             const std::vector<std::pair<std::string, std::string>> place = {
                 {"location", "outside.bin"}, {"offset", "0"}, {"length", std::to_string(4 * elements)}};
             for (const auto& [key, value] : place) {
               auto* entry = tensor.add_external_data();
               entry->set_key(key);
               entry->set_value(value);
             }
             attribute(maker.node("ReduceMean", {name}, {sum}), "keepdims", int64_t{0});
             maker.node("Add", {last, sum}, {next});
             last = next;
           }
           return last;
         })
      .bytes();
}

constexpr auto kPatience = std::chrono::seconds(60);

// What a submission that is made over and over came to.
struct Outcomes {
  std::mutex mutex;
  uint64_t refused = 0, failed = 0;
  std::set<std::string> words;
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  void note(bool is_refusal, const std::string& what) {
    const std::lock_guard lock(mutex);
    ++(is_refusal ? refused : failed);
    words.insert(what);
  }
  bool suffice() {
    const std::lock_guard lock(mutex);
    return refused + failed > 0 || std::chrono::steady_clock::now() - begin > kPatience;
  }
  bool say(const std::string& part) {
    const std::lock_guard lock(mutex);
    for (const std::string& each : words)
      if (each.find(part) != std::string::npos) return true;
    return false;
  }
};

uint64_t size_of(const fs::path& folder) {
  uint64_t size = 0;
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(folder, code))
    if (entry.is_regular_file(code)) size += entry.file_size(code);
  return size;
}

// Submits it again and again, from `users` connections; at least once, whatever it takes.
void besiege(Siege& siege, Outcomes& outcomes, int users,
             const std::function<Result<proto::SubmitJob>(Submitter&)>& make) {
  siege.withstands([&](const std::atomic<bool>& is_over) {
    std::vector<std::thread> threads;
    for (int user = 0; user < users; ++user)
      threads.emplace_back([&] {
        const auto is_done = [&] { return is_over && outcomes.suffice(); };
        Submitter submitter(siege.broker().endpoint(), siege.broker().submitter_token(), is_done);
        const auto submission = make(submitter);
        while (submission && !is_done()) {
          const auto job = submitter.submit(*submission);
          if (!job) {
            if (job.error().code == ErrorCode::Cancelled) return;
            outcomes.note(true, job.error().message);
            continue;
          }
          const auto status = submitter.wait_for_end(*job);
          if (status) outcomes.note(false, status->reason);
        }
      });
    for (std::thread& thread : threads) thread.join();
  });
  std::printf("  jobs: %llu refused, %llu failed\n", static_cast<unsigned long long>(outcomes.refused),
              static_cast<unsigned long long>(outcomes.failed));
  for (const std::string& words : outcomes.words) std::printf("  said: %s\n", words.c_str());
}

// A large model travels as a blob, as `weft submit` sends it.
Result<proto::SubmitJob> uploaded(Submitter& submitter, const std::string& model) {
  WEFT_TRY(const Digest sha256, submitter.put(std::as_bytes(std::span(model))));
  return submission_of(file_of(kModelPath, sha256, model.size()));
}

const std::vector<std::string> kLinks = {"--links", "assume"};

std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.end(), kLinks.begin(), kLinks.end());
  return more;
}

// A plan that would take longer than it may.
TEST(SubmissionAttack, AModelThatPlansForEver) {
  Siege siege({}, with({"--plan-seconds", "1"}));
  Outcomes outcomes;
  const std::string model = chain_of("Relu", 60'000);
  besiege(siege, outcomes, 1, [&](Submitter& submitter) { return uploaded(submitter, model); });
  EXPECT_TRUE(outcomes.say("planning was ended after 1 s"));
}

// 3 KB that once ended the broker with bad_alloc, and again after each restart.
TEST(SubmissionAttack, WeightsThatAllLieInOneRange) {
  Siege siege({}, with({"--plan-memory", "512MiB"}));
  Outcomes outcomes;
  constexpr int64_t kElements = 2 << 20;
  const std::string model = shared_range_model(100, kElements);
  besiege(siege, outcomes, 1, [&](Submitter& submitter) -> Result<proto::SubmitJob> {
    WEFT_TRY(const Digest outside, submitter.put(std::vector<std::byte>(4 * kElements)));
    return submission_of(file_of(kModelPath, model),
                         {file_of("model/outside.bin", outside, uint64_t{4} * kElements)});
  });
  EXPECT_GT(outcomes.failed, 0u);
}

// 6.7 KB that once wrote 600 MiB.
TEST(SubmissionAttack, ABlobThatIsNamedOverAndOver) {
  Siege siege({}, with({}));
  Outcomes outcomes;
  const std::string model = chain_of("Relu", 1);
  const uint64_t before = size_of(siege.broker().folder());
  besiege(siege, outcomes, 1, [&](Submitter& submitter) -> Result<proto::SubmitJob> {
    WEFT_TRY(const Digest outside, submitter.put(std::vector<std::byte>(4 << 20)));
    proto::PackedFile bomb{.path = "model/outside.bin", .pieces = {}};
    for (int i = 0; i < 150; ++i)
      bomb.pieces.push_back({.bytes = {}, .sha256 = outside, .size = uint64_t{4} << 20});
    return submission_of(file_of(kModelPath, model), {bomb});
  });
  EXPECT_GT(outcomes.refused, 0u);
  EXPECT_EQ(outcomes.failed, 0u);
  EXPECT_TRUE(outcomes.say("it names the same bytes too often"));
  EXPECT_LT(size_of(siege.broker().folder()), before + (32u << 20));
}

// As many nodes as a model may have, from several users: two at a time are planned.
TEST(SubmissionAttack, HugeGraphs) {
  Siege siege({}, with({"--plan-memory", "512MiB", "--plan-seconds", "2"}));
  Outcomes outcomes;
  const std::string model = chain_of("Tanh", 99'000);
  besiege(siege, outcomes, 4, [&](Submitter& submitter) { return uploaded(submitter, model); });
}

}  // namespace
}  // namespace weft::attacks
