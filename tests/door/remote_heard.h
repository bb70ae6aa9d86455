// What callers of RemoteRequests ask and hear, beside an engine that nothing disturbs.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "broker/service/remote_requests.h"
#include "tests/door/fake_entry.h"

namespace weft::broker::test_door {

inline constexpr int64_t kContext = 96, kVocabulary = 24;
inline constexpr uint64_t kFirst = 1000;

inline PeerId peer(int number) {
  PeerId id;
  id.digest.bytes[0] = static_cast<uint8_t>(number);
  return id;
}

inline ServedJob served(std::optional<int> entry, proto::PlanVersion plan_version = 1) {
  ServedJob job{.job = 7, .model = {.name = "tiny"}};
  job.model.context = kContext;
  job.model.vocabulary = kVocabulary;
  job.model.positions_max = 4096;
  job.model.sequences_max = 16;
  if (entry)
    job.place = ServedPlace{.job = 7, .plan_version = plan_version, .entry = peer(*entry)};
  else
    job.unavailable = "stage 1 of 2 has no peer";
  return job;
}

// What one caller hears.
struct Heard {
  std::vector<int64_t> tokens;
  std::optional<serve::Finish> finish;
  Status status;
  uint64_t id = 0;
  size_t leaves_after = SIZE_MAX;  // tokens

  serve::Listener listener() {
    return {.on_token =
                [this](const serve::Generated& generated) {
                  EXPECT_FALSE(finish) << "a token behind the end";
                  tokens.push_back(generated.draw.token);
                  return tokens.size() < leaves_after;
                },
            .on_end =
                [this](serve::Finish how, const Status& why) {
                  EXPECT_FALSE(finish) << "two ends";
                  finish = how;
                  status = why;
                }};
  }
  bool failed_with(ErrorCode code) const {
    return finish == serve::Finish::Failed && !status && status.error().code == code;
  }
};

inline serve::Request request_of(std::vector<int64_t> prompt, int64_t tokens_max, uint64_t seed = 1) {
  return {.prompt = std::move(prompt), .tokens_max = tokens_max, .sampling = {.seed = seed}};
}

// What an engine that nothing disturbs makes of it.
inline std::pair<std::vector<int64_t>, serve::Finish> undisturbed(const serve::Request& request) {
  test::HashingDecoder decoder(kContext, kVocabulary);
  serve::Engine engine(decoder, {});
  Heard heard;
  EXPECT_TRUE(engine.add(request, heard.listener()));
  while (!engine.tick().idle) continue;
  return {heard.tokens, heard.finish.value()};
}

// The requests, and messages that they sent.
struct Fixture {
  explicit Fixture(RemoteOptions options = {})
      : requests(
            served(1), kFirst,
            [this](const PeerId& to, proto::Message message) { sent.emplace_back(to, std::move(message)); },
            [this](const std::string& line) { lines.push_back(line); }, options) {}

  void add(const serve::Request& request, Heard& heard) {
    requests.add(
        request, heard.listener(),
        [&heard](uint64_t id) {
          heard.id = id;
          return true;
        },
        now);
  }
  // All that was sent goes to the entry, which works until there is nothing to do; all that it says comes
  // back.
  void run(test::FakeEntry& entry, const PeerId& from = peer(1)) {
    do {
      for (const auto& [to, message] : std::exchange(sent, {})) entry.take(message);
      for (const auto& progress : entry.told()) requests.progress(from, progress, now);
    } while (entry.work() || !sent.empty());
  }
  // Of the requests that were sent and not handed on.
  const proto::ServeRequest& last_request() { return std::get<proto::ServeRequest>(sent.back().second); }
  double value(const char* name) const { return requests.metrics().value(name, {{"model", "tiny"}}); }

  Instant now{std::chrono::seconds(100)};
  std::vector<std::pair<PeerId, proto::Message>> sent;
  std::vector<std::string> lines;
  RemoteRequests requests;
};

}  // namespace weft::broker::test_door
