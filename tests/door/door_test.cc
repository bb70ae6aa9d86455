#include "broker/service/door.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "net/worker.h"
#include "serve/service/engine_thread.h"
#include "serve/service/text_service.h"
#include "tests/door/fake_entry.h"
#include "tests/door/one_machine.h"
#include "tests/web/client.h"
#include "web/client.h"

namespace weft::broker {
namespace {

using Json = nlohmann::json;
using web::test::get;
using web::test::post;
using web::test::Reply;

constexpr int64_t kContext = 4096;

PeerId peer(int number) {
  PeerId id;
  id.digest.bytes[0] = static_cast<uint8_t>(number);
  return id;
}

ServedJob served(proto::JobNumber number, const std::string& name) {
  ServedJob job{.job = number, .model = {.name = name}, .created = 1700000000};
  job.model.chat_template = "plain";
  job.model.context = kContext;
  job.model.vocabulary = 256;
  job.model.positions_max = 65536;
  job.model.sequences_max = 16;
  job.model.fingerprint = "weft-" + name;
  return job;
}
ServedJob placed(ServedJob job, int entry, proto::PlanVersion plan_version = 1) {
  job.unavailable.clear();
  job.place = ServedPlace{.job = job.job, .plan_version = plan_version, .entry = peer(entry)};
  return job;
}
ServedJob waiting(ServedJob job, const std::string& why) {
  job.unavailable = why;
  return job;
}

// Peers that are entries, on a thread of their own. One that is held says so many tokens and then nothing.
class Peers {
 public:
  void tell(const PeerId& to, proto::Message message) {
    worker_.post([this, to, message = std::move(message)] {
      auto& entry = entries_[to];
      if (!entry) entry = std::make_unique<test::FakeEntry>(kContext, 256);
      entry->take(message);
      do {
        for (auto& told : entry->told()) say(to, told);
      } while (entry->work());
    });
  }
  void hold(const PeerId& entry, size_t tokens) {
    const MutexLock lock(mutex_);
    held_[entry] = tokens;
  }
  void come_to(ServedView* view) {
    const MutexLock lock(mutex_);
    view_ = view;
  }
  void leave() { come_to(nullptr); }

 private:
  void say(const PeerId& from, const proto::ServeProgress& told) {
    const MutexLock lock(mutex_);
    if (const auto held = held_.find(from); held != held_.end()) {
      if (held->second == 0) return;
      held->second -= told.tokens.size();
    }
    if (view_ != nullptr) view_->on_progress(from, told);
  }

  std::map<PeerId, std::unique_ptr<test::FakeEntry>> entries_;  // the worker's
  Mutex mutex_;
  ServedView* view_ WEFT_GUARDED_BY(mutex_) = nullptr;
  std::map<PeerId, size_t> held_ WEFT_GUARDED_BY(mutex_);
  net::Worker worker_;
};

struct Fixture {
  explicit Fixture(DoorOptions options = {.is_open = [] { return true; }}) {
    auto started = Door::start(std::move(options), [this](const PeerId& to, proto::Message message) {
      peers->tell(to, std::move(message));
    });
    EXPECT_TRUE(started) << started.error().message;
    door = std::move(*started);
    peers->come_to(door.get());
  }
  ~Fixture() {
    peers->leave();
    door.reset();
  }
  Reply ask(const std::string& request) const { return web::test::ask(door->endpoint(), request); }
  // What is told is taken on another thread: until it is so.
  bool becomes(const std::string& request, int status) const {
    const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
    while (std::chrono::steady_clock::now() < end)
      if (ask(request).status == status) return true;
    return false;
  }
  void serve(const ServedJob& job) {
    door->on_served(job);
    EXPECT_TRUE(becomes(get("/v1/models/" + job.model.name), job.place ? 200 : 503));
  }

  std::unique_ptr<Peers> peers = std::make_unique<Peers>();
  std::unique_ptr<Door> door;
};

std::string complete(const std::string& model, const std::string& prompt, const Json& more = Json::object()) {
  Json body = {{"model", model}, {"prompt", prompt}, {"seed", 5}};
  body.update(more);
  return post("/v1/completions", body.dump());
}
std::string get_with(const std::string& path, const std::string& header) {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + header + "\r\n\r\n";
}
Json error_of(const Reply& reply) { return Json::parse(reply.body).at("error"); }
std::string text_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body)["choices"][0]["text"];
}

// What one machine makes of it.
std::string undisturbed(const std::string& prompt, uint32_t max_tokens, int64_t seed = 5) {
  return test::text_of_one_machine(
      {.prompt = prompt, .max_tokens = max_tokens, .seed = seed, .is_stream = true}, kContext);
}

// By this house's client, which goes on by itself where a stream breaks.
struct Asked {
  Asked(const net::Endpoint& at, const std::string& key = {}) {
    auto made = web::Client::make(loop, {.url = {false, at, "/v1"}, .key = key});
    EXPECT_TRUE(made);
    client = std::move(*made);
  }
  Result<web::AnswerEnd> complete(const std::string& model, const std::string& prompt, uint32_t max_tokens) {
    return client->generate({.model = model, .prompt = prompt, .max_tokens = max_tokens, .seed = 5},
                            [&](const std::string& piece) {
                              text += piece;
                              if (on_piece) on_piece();
                            });
  }
  net::Loop loop;
  std::unique_ptr<web::Client> client;
  std::string text;
  std::function<void()> on_piece;
};

TEST(Door, TwoModelsAnswerByTheirNames) {
  Fixture f;
  EXPECT_EQ(f.ask(get("/health")).body, "ok: no model is served\n");
  f.serve(placed(served(1, "alpha"), 1));
  f.serve(placed(served(2, "beta"), 2));
  const Json models = Json::parse(f.ask(get("/v1/models")).body)["data"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0]["id"], "alpha");
  EXPECT_EQ(models[1]["id"], "beta");
  const Reply one = f.ask(complete("alpha", "Once", {{"max_tokens", 40}}));
  EXPECT_EQ(text_of(one), undisturbed("Once", 40));
  EXPECT_EQ(Json::parse(one.body)["system_fingerprint"], "weft-alpha");
  EXPECT_EQ(text_of(f.ask(complete("beta", "Twice", {{"max_tokens", 30}}))), undisturbed("Twice", 30));
  const std::string metrics = f.ask(get("/metrics")).body;
  EXPECT_NE(metrics.find("weft_serve_tokens_total{model=\"alpha\"} 40"), metrics.npos) << metrics;
  EXPECT_NE(metrics.find("weft_serve_tokens_total{model=\"beta\"} 30"), metrics.npos) << metrics;
}

TEST(Door, WhatIsRefused) {
  Fixture f;
  f.serve(placed(served(1, "alpha"), 1));
  ServedJob small = placed(served(2, "small"), 2);
  small.model.positions_max = 128;
  f.serve(small);
  f.serve(waiting(served(3, "later"), "stage 1 of 3 has no peer"));
  const Reply unknown = f.ask(complete("gamma", "a"));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown)["code"], "model_not_found");
  const Reply later = f.ask(complete("later", "a"));
  EXPECT_EQ(later.status, 503);
  EXPECT_NE(later.body.find("stage 1 of 3 has no peer"), later.body.npos);
  EXPECT_EQ(later.headers.at("retry-after"), "5");
  const Reply large = f.ask(complete("alpha", "abcd", {{"max_tokens", 5000}}));
  EXPECT_EQ(large.status, 400);
  EXPECT_EQ(error_of(large)["code"], "context_length_exceeded");
  EXPECT_EQ(error_of(large)["message"],
            "a prompt of 4 tokens and max_tokens of 5000 go beyond the model's context of 4096");
  const Reply full = f.ask(complete("small", "abcd", {{"max_tokens", 200}}));
  EXPECT_EQ(full.status, 400);
  EXPECT_NE(full.body.find("the largest that fits has 128"), full.body.npos) << full.body;
  EXPECT_EQ(f.ask(get("/v1/streams/cmpl-nobody")).status, 404);
  EXPECT_EQ(f.ask(get("/health")).body, "ok: 2 of 3 models answer\n");
}

TEST(Door, TooManyThatWait) {
  Fixture f({.is_open = [] { return true; }, .remote = {.waiting_max = 1, .beyond_sequences = 0}});
  ServedJob job = placed(served(1, "alpha"), 1);
  job.model.sequences_max = 1;
  f.serve(job);
  f.peers->hold(peer(1), 1);
  // One is answered and one waits, as both have heard.
  web::test::Client first(f.door->endpoint()), second(f.door->endpoint());
  for (web::test::Client* client : {&first, &second}) {
    ASSERT_TRUE(client->send(complete("alpha", "a", {{"stream", true}})));
    EXPECT_EQ(client->read_reply().status, 200);
  }
  const Reply third = f.ask(complete("alpha", "a"));
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(third.headers.at("retry-after"), "1");
}

TEST(Door, TokensAndRoles) {
  Fixture f({.check = [](std::string_view token) -> Result<Caller> {
    if (token == "caller") return Caller{.token = 1};
    if (token == "peer") return fail(ErrorCode::PermissionDenied, "a peer's");
    if (token == "busy") return fail(ErrorCode::Unavailable, "locked");
    return fail(ErrorCode::NotFound, "none");
  }});
  const auto status = [&](const std::string& token) {
    return f.ask(get_with("/v1/models", token.empty() ? "X: y" : "Authorization: Bearer " + token)).status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("guess"), 401);
  EXPECT_EQ(status("peer"), 403);
  EXPECT_EQ(status("busy"), 503);
  EXPECT_EQ(status("caller"), 200);
  EXPECT_EQ(f.ask(complete("alpha", "a")).status, 401);
  EXPECT_EQ(f.ask(get("/metrics")).status, 401);
  EXPECT_EQ(f.ask(get("/health")).status, 200);
}

TEST(Door, OthersReachItWithACertificateAlone) {
  const auto open =
      Door::start({.server = {.endpoint = {"0.0.0.0", 0}}}, [](const PeerId&, proto::Message) {});
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, ErrorCode::InvalidArgument);
  // Nobody is let in by chance.
  Fixture f(DoorOptions{});
  EXPECT_EQ(f.ask(get("/v1/models")).status, 401);
}

TEST(Door, AStreamGoesOnWhereTheEntryIsReplaced) {
  Fixture f;
  const ServedJob job = served(1, "alpha");
  f.serve(placed(job, 1));
  f.peers->hold(peer(1), 20);
  Asked asked(f.door->endpoint());
  asked.on_piece = [&] {
    if (asked.text.size() != 20) return;
    ServedJob bare{.job = job.job, .model = {.name = "alpha"}, .created = job.created};
    f.door->on_served(waiting(bare, "a peer was lost"));  // of what is not planned only the name is known
    ServedJob other = placed(job, 2, 2);
    other.model.fingerprint = "weft-other";
    f.door->on_served(other);
  };
  const auto end = asked.complete("alpha", "Once", 60);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(asked.text, undisturbed("Once", 60));
  EXPECT_EQ(end->system_fingerprint, "weft-other");
  EXPECT_EQ(end->breaks, 0u);
}

TEST(Door, AStreamIsReadAgainBehindItsLastEvent) {
  Fixture f;
  f.serve(placed(served(1, "alpha"), 1));
  web::test::Client client(f.door->endpoint());
  ASSERT_TRUE(client.send(complete("alpha", "Once", {{"stream", true}, {"max_tokens", 30}})));
  EXPECT_EQ(client.read_reply().status, 200);
  const std::string all = client.read_until("[DONE]\n\n");
  const std::string id = all.substr(4, all.find("-1\n") - 4);
  const auto again = [&](const std::string& last) {
    web::test::Client other(f.door->endpoint());
    EXPECT_TRUE(other.send(get_with("/v1/streams/" + id, "Last-Event-ID: " + last)));
    EXPECT_EQ(other.read_reply().status, 200);
    return other.read_until("[DONE]\n\n");
  };
  EXPECT_EQ(again(id + "-10"), all.substr(all.find("id: " + id + "-11\n")));
  // Of a job that has ended, too.
  f.door->on_withdrawn(1);
  EXPECT_TRUE(f.becomes(get("/v1/models/alpha"), 404));
  EXPECT_EQ(again(id + "-10"), all.substr(all.find("id: " + id + "-11\n")));
}

// The text of events as they were sent.
std::string text_of_events(const std::string& events) {
  std::string text;
  for (size_t at = events.find("data: {"); at != events.npos; at = events.find("data: {", at + 1)) {
    const Json json = Json::parse(events.substr(at + 6, events.find('\n', at) - at - 6));
    if (!json["choices"].empty()) text += json["choices"][0].value("text", "");
  }
  return text;
}

TEST(Door, WhoseConnectionBreaksReadsOnWhereverItIsComputedThen) {
  Fixture f;
  const ServedJob job = served(1, "alpha");
  f.serve(placed(job, 1));
  f.peers->hold(peer(1), 8);
  std::string events;
  {
    web::test::Client client(f.door->endpoint());
    ASSERT_TRUE(client.send(complete("alpha", "Once", {{"stream", true}, {"max_tokens", 40}})));
    EXPECT_EQ(client.read_reply().status, 200);
    for (int i = 0; i < 6; ++i) events += client.read_until("\n\n");
    client.reset();
  }
  const size_t last = events.rfind("id: ") + 4;
  const std::string last_event = events.substr(last, events.find('\n', last) - last);
  f.door->on_served(placed(job, 2, 2));
  web::test::Client again(f.door->endpoint());
  const std::string id = last_event.substr(0, last_event.rfind('-'));
  ASSERT_TRUE(again.send(get_with("/v1/streams/" + id, "Last-Event-ID: " + last_event)));
  EXPECT_EQ(again.read_reply().status, 200);
  EXPECT_EQ(text_of_events(events + again.read_until("[DONE]\n\n")), undisturbed("Once", 40));
}

TEST(Door, AJobThatEndsEndsItsStreams) {
  Fixture f;
  f.serve(placed(served(1, "alpha"), 1));
  f.peers->hold(peer(1), 3);
  web::test::Client client(f.door->endpoint());
  ASSERT_TRUE(client.send(complete("alpha", "Once", {{"stream", true}})));
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_NE(client.read_until("\n\n"), "");
  f.door->on_withdrawn(1);
  EXPECT_NE(client.read_until("service_unavailable_error").find("has ended"), std::string::npos);
  EXPECT_TRUE(f.becomes(complete("alpha", "a"), 404));
}

TEST(Door, WhoReadsTooSlowlyIsClosedAndOthersGoOn) {
  DoorOptions options{.is_open = [] { return true; }};
  options.server.limits.stream_unsent_max = 100'000;
  Fixture f(std::move(options));
  f.serve(placed(served(1, "alpha"), 1));
  web::test::Client slow(f.door->endpoint());
  slow.set_receive_buffer(4096);
  // Some 6 MB: more than the system keeps for a client.
  const Json much = {{"model", "alpha"}, {"messages", {{{"role", "user"}, {"content", "slow"}}}},
                     {"stream", true},   {"max_tokens", 4000},
                     {"logprobs", true}, {"top_logprobs", 20}};
  ASSERT_TRUE(slow.send(post("/v1/chat/completions", much.dump())));
  bool is_closed = false;
  const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
  while (!is_closed && std::chrono::steady_clock::now() < end) {
    Asked quick(f.door->endpoint());
    ASSERT_TRUE(quick.complete("alpha", "quick", 50));
    ASSERT_EQ(quick.text, undisturbed("quick", 50));
    is_closed = f.ask(get("/metrics")).body.find("weft_http_clients_slow_total 1") != std::string::npos;
  }
  EXPECT_TRUE(is_closed) << f.ask(get("/metrics")).body;
}

TEST(Door, AModelWhoseTokenizerIsNoneSaysSo) {
  Fixture f;
  ServedJob job = placed(served(1, "alpha"), 1);
  job.model.tokenizer = "tokenizer.json";
  job.tokenizer_json = "{";
  f.door->on_served(job);
  ASSERT_TRUE(f.becomes(complete("alpha", "a"), 503));
  const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
  std::string said;
  while (said.find("its tokenizer") == said.npos && std::chrono::steady_clock::now() < end)
    said = f.ask(complete("alpha", "a")).body;
  EXPECT_NE(said.find("its tokenizer"), said.npos);
}

}  // namespace
}  // namespace weft::broker
