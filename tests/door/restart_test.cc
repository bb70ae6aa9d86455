// A broker that restarts: its door has the streams open again that callers had asked for.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "broker/service/door.h"
#include "net/worker.h"
#include "serve/service/engine_thread.h"
#include "serve/service/text_service.h"
#include "tests/door/fake_entry.h"
#include "tests/door/one_machine.h"
#include "tests/web/client.h"
#include "web/client.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using web::test::get;
using web::test::post;

constexpr int64_t kContext = 512;
constexpr uint32_t kLength = 40;

ServedJob served() {
  ServedJob job{.job = 1, .model = {.name = "alpha"}, .created = 1700000000};
  job.model.chat_template = "plain";
  job.model.context = kContext;
  job.model.vocabulary = 256;
  job.model.positions_max = 65536;
  job.model.sequences_max = 64;
  job.model.fingerprint = "weft-alpha";
  PeerId entry;
  entry.digest.bytes[0] = 1;
  job.place = ServedPlace{.job = 1, .plan_version = 1, .entry = entry};
  return job;
}

// A peer that is the entry, on a thread of its own. It outlives doors, and may be told to say no more.
class Entry {
 public:
  void tell(const PeerId& to, proto::Message message) {
    worker_.post([this, to, message = std::move(message)] {
      entry_->take(message);
      do {
        for (auto& told : entry_->told()) say(to, told);
      } while (entry_->work());
    });
  }
  void come_to(ServedView* view) {
    const MutexLock lock(mutex_);
    view_ = view;
  }
  // Of requests that come from now on; what is still said of those before counts for nothing.
  void hold(size_t tokens) {
    const MutexLock lock(mutex_);
    left_ = tokens;
    before_ = seen_;
  }
  void go_on() {
    const MutexLock lock(mutex_);
    left_ = SIZE_MAX;
  }
  void forget() {
    worker_.post([this] { entry_ = std::make_unique<test::FakeEntry>(kContext, 256); });
  }

 private:
  void say(const PeerId& from, const proto::ServeProgress& told) {
    const MutexLock lock(mutex_);
    seen_.insert(told.request);
    if (before_.contains(told.request)) return;
    if (left_ == 0) return;
    if (left_ != SIZE_MAX) left_ -= std::min(left_, std::max<size_t>(told.tokens.size(), 1));
    if (view_ != nullptr) view_->on_progress(from, told);
  }

  std::unique_ptr<test::FakeEntry> entry_ = std::make_unique<test::FakeEntry>(kContext, 256);
  Mutex mutex_;
  ServedView* view_ WEFT_GUARDED_BY(mutex_) = nullptr;
  size_t left_ WEFT_GUARDED_BY(mutex_) = SIZE_MAX;
  std::set<uint64_t> seen_ WEFT_GUARDED_BY(mutex_), before_ WEFT_GUARDED_BY(mutex_);  // requests
  net::Worker worker_;
};

// A door at one address and with one file, started and killed again.
class Restarted {
 public:
  explicit Restarted(const std::string& name) : folder_(fs::path(WEFT_TEST_TMP) / ("restart_" + name)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Restarted() {
    stop();
    fs::remove_all(folder_);
  }
  fs::path file() const { return folder_ / "requests.sqlite"; }
  fs::path picture() const { return folder_ / "picture.sqlite"; }
  const net::Endpoint& at() const { return at_; }
  web::test::Reply ask(const std::string& request) const { return web::test::ask(at_, request); }

  void start() {
    DoorOptions options{.is_open = [] { return true; }, .requests = file()};
    options.server.endpoint = at_;
    options.remote.pause = std::chrono::milliseconds(1);
    auto started = Door::start(std::move(options), [this](const PeerId& to, proto::Message message) {
      entry.tell(to, std::move(message));
    });
    ASSERT_TRUE(started) << started.error().message;
    door_ = std::move(*started);
    at_ = door_->endpoint();
    entry.come_to(door_.get());
    door_->on_served(served());
  }
  void stop() {
    entry.come_to(nullptr);
    door_.reset();
  }
  // What is durable at this moment is what the next door finds: whatever is written later is lost. Taken by
  // SQLite, for who opens and closes its files beside it takes its locks away.
  void take_picture() const {
    fs::remove(picture());
    if (!fs::exists(file())) return;
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &database), SQLITE_OK);
    sqlite3_busy_timeout(database, 10000);
    const std::string into = "VACUUM INTO '" + picture().string() + "'";
    EXPECT_EQ(sqlite3_exec(database, into.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  void kill() {
    stop();
    for (const char* more : {"", "-wal", "-shm"}) fs::remove(file().string() + more);
    if (fs::exists(picture())) fs::rename(picture(), file());
  }
  void become_ready() const {
    const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
    while (ask(get("/v1/models/alpha")).status != 200 && std::chrono::steady_clock::now() < end) {
    }
  }

  Entry entry;

 private:
  const fs::path folder_;
  net::Endpoint at_{"127.0.0.1", 0};
  std::unique_ptr<Door> door_;
};

web::GenerateRequest request(uint64_t seed) {
  return {.model = "alpha",
          .prompt = "Once " + std::to_string(seed),
          .max_tokens = kLength,
          .seed = static_cast<int64_t>(seed),
          .is_stream = true,
          .includes_usage = true};
}

struct Asking {
  explicit Asking(const net::Endpoint& at) {
    web::ClientLimits limits;
    limits.retry_first = limits.retry_longest = std::chrono::milliseconds(5);
    client = std::move(*web::Client::make(loop, {.url = {false, at, "/v1"}, .limits = limits}));
  }
  Result<web::AnswerEnd> ask(uint64_t seed) {
    return client->generate(request(seed), [&](const std::string& piece) {
      text += piece;
      if (on_piece) on_piece();
    });
  }
  net::Loop loop;
  std::unique_ptr<web::Client> client;
  std::string text;
  std::function<void()> on_piece;
};

// What one machine makes of it.
std::string undisturbed(uint64_t seed) { return test::text_of_one_machine(request(seed), kContext); }

// Between any two pieces, once or twice; the entry knows the request still, or was lost with the broker.
TEST(Restart, AStreamGoesOnWhereverItWas) {
  Restarted broker("streams");
  broker.start();
  broker.become_ready();
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    broker.become_ready();
    Asking asking(broker.at());
    const size_t hold = 1 + random() % kLength;
    const bool entry_is_lost = random() % 2 == 0;
    broker.entry.hold(hold);
    size_t kills = 1 + random() % 2, pieces = 0;
    size_t next = 1 + random() % hold;
    asking.on_piece = [&] {
      if (++pieces < next || kills == 0) return;
      --kills;
      next = pieces + 1;
      broker.take_picture();
      broker.kill();
      if (entry_is_lost) broker.entry.forget();
      broker.entry.go_on();
      broker.start();
    };
    const auto end = asking.ask(seed);
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_EQ(asking.text, undisturbed(seed));
    EXPECT_EQ(end->usage.completion_tokens, kLength);
    broker.entry.go_on();
  }
}

// Nobody has heard of it: it is asked for anew.
TEST(Restart, WhatWasNeverWrittenIsAskedForAgain) {
  Restarted broker("unwritten");
  broker.start();
  broker.become_ready();
  broker.take_picture();
  broker.entry.hold(0);
  std::thread killer;
  {
    Asking asking(broker.at());
    killer = std::thread([&] {
      const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
      while (broker.ask(get("/metrics")).body.find("requests_serving{model=\"alpha\"} 1") ==
                 std::string::npos &&
             std::chrono::steady_clock::now() < end) {
      }
      broker.kill();
      broker.entry.go_on();
      broker.start();
    });
    const auto end = asking.ask(7);
    killer.join();
    // It had its head by then, or not: without an event it is the client that asks anew.
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_EQ(asking.text, undisturbed(7));
  }
}

std::string header_of(const std::string& path, const std::string& last) {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\nLast-Event-ID: " + last + "\r\n\r\n";
}

// The same events under the same ids, of both APIs, with what is told beside tokens and with stops.
TEST(Restart, EventsAreTheSameAgain) {
  Restarted broker("events");
  broker.start();
  broker.become_ready();
  const Json common = {{"model", "alpha"}, {"stream", true}, {"max_tokens", 30}, {"seed", 3}};
  Json completion = common, chat = common, drawn = common;
  completion.update({{"prompt", "Once"}, {"logprobs", 2}, {"stream_options", {{"include_usage", true}}}});
  chat.update({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"stop", {"zzzz"}}});
  drawn.update({{"prompt", "Twice"}});
  drawn.erase("seed");
  const std::vector<std::string> posts = {post("/v1/completions", completion.dump()),
                                          post("/v1/chat/completions", chat.dump()),
                                          post("/v1/completions", drawn.dump())};
  std::vector<std::string> all, ids;
  for (const std::string& request : posts) {
    web::test::Client client(broker.at());
    ASSERT_TRUE(client.send(request));
    ASSERT_EQ(client.read_reply().status, 200);
    all.push_back(client.read_until("[DONE]\n\n"));
    ids.push_back(all.back().substr(4, all.back().find("-1\n") - 4));
  }
  for (const bool entry_is_lost : {false, true}) {
    broker.stop();
    if (entry_is_lost) broker.entry.forget();
    broker.start();
    for (size_t i = 0; i < posts.size(); ++i) {
      std::string again;
      const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
      while (again.empty() && std::chrono::steady_clock::now() < end) {
        web::test::Client client(broker.at());
        ASSERT_TRUE(client.send(header_of("/v1/streams/" + ids[i], ids[i] + "-5")));
        const web::test::Reply reply = client.read_reply();
        ASSERT_TRUE(reply.status == 200 || reply.status == 503) << reply.body;
        if (reply.status == 200) again = client.read_until("[DONE]\n\n");
      }
      EXPECT_EQ(again, all[i].substr(all[i].find("id: " + ids[i] + "-6\n"))) << i;
    }
  }
}

std::string under_key(const std::string& key, const Json& body) {
  std::string request = post("/v1/completions", body.dump());
  return request.insert(request.find("Content-Type"), "Idempotency-Key: " + key + "\r\n");
}

// Whoever asks again under its key gets the answer of the first time, though no seed says what it is.
TEST(Restart, AWholeAnswerIsTheSameUnderItsKey) {
  Restarted broker("whole");
  broker.start();
  broker.become_ready();
  const Json body = {{"model", "alpha"}, {"max_tokens", 30}, {"prompt", "Once"}};
  const auto ask_until_there = [&](const std::string& request) {
    web::test::Reply reply;
    const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
    do reply = broker.ask(request);
    while ((reply.status == 503 || reply.status == 404) && std::chrono::steady_clock::now() < end);
    return reply;
  };
  const web::test::Reply first = broker.ask(under_key("ended", body));
  ASSERT_EQ(first.status, 200) << first.body;
  for (const bool entry_is_lost : {false, true}) {
    broker.stop();
    if (entry_is_lost) broker.entry.forget();
    broker.start();
    const web::test::Reply again = ask_until_there(under_key("ended", body));
    ASSERT_EQ(again.status, 200) << again.body;
    EXPECT_EQ(again.body, first.body);
    Json other = body;
    other["max_tokens"] = 31;
    EXPECT_EQ(broker.ask(under_key("ended", other)).status, 409);
    const web::test::Reply another = broker.ask(under_key("another " + std::to_string(entry_is_lost), body));
    EXPECT_EQ(another.status, 400) << "no key has a space";
    EXPECT_NE(broker.ask(under_key("more" + std::to_string(entry_is_lost), body)).body, first.body);
  }
}

// Killed while it is computed: what was drawn before has been told to nobody, and the seed is kept.
TEST(Restart, AWholeAnswerUnderWayGoesOn) {
  Restarted broker("whole_under_way");
  broker.start();
  broker.become_ready();
  const Json body = {{"model", "alpha"}, {"max_tokens", 30}, {"prompt", "Once"}, {"seed", 5}};
  broker.entry.hold(10);
  {
    web::test::Client client(broker.at());
    ASSERT_TRUE(client.send(under_key("k", body)));
    const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
    while (broker.ask(get("/metrics")).body.find("tokens_total{model=\"alpha\"} 10") == std::string::npos &&
           std::chrono::steady_clock::now() < end) {
    }
    broker.take_picture();
    broker.kill();
  }
  broker.entry.go_on();
  broker.start();
  web::test::Reply reply;
  const auto end = std::chrono::steady_clock::now() + web::test::kPatience;
  do reply = broker.ask(under_key("k", body));
  while ((reply.status == 503 || reply.status == 404) && std::chrono::steady_clock::now() < end);
  ASSERT_EQ(reply.status, 200) << reply.body;
  web::GenerateRequest asked = request(5);
  asked.prompt = "Once";
  asked.max_tokens = 30;
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["text"], test::text_of_one_machine(asked, kContext));
  EXPECT_NE(broker.ask(get("/metrics")).body.find("finish=\"length\",model=\"alpha\"} 1"), std::string::npos)
      << "it was computed once";
}

TEST(Restart, ADamagedFileIsPutAside) {
  Restarted broker("damaged");
  std::ofstream(broker.file()) << std::string(8192, 'x');
  broker.start();
  broker.become_ready();
  Asking asking(broker.at());
  ASSERT_TRUE(asking.ask(1));
  EXPECT_EQ(asking.text, undisturbed(1));
  EXPECT_TRUE(fs::exists(broker.file().string() + ".damaged"));
  EXPECT_NE(broker.ask(get("/metrics")).body.find("weft_serve_requests_kept 1"), std::string::npos);
}

TEST(Restart, WithoutAFileRequestsAreServedAllTheSame) {
  Restarted broker("none");
  fs::create_directories(broker.file());  // a folder is no database
  broker.start();
  broker.become_ready();
  Asking asking(broker.at());
  ASSERT_TRUE(asking.ask(1));
  EXPECT_EQ(asking.text, undisturbed(1));
  EXPECT_NE(broker.ask(get("/metrics")).body.find("weft_serve_requests_not_kept_total 1"), std::string::npos);
}

}  // namespace
}  // namespace weft::broker
