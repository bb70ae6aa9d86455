#include "broker/store/request_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/codec/codec.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;

struct Fixture {
  Fixture() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~Fixture() { fs::remove_all(folder); }
  std::unique_ptr<RequestStore> open(const RequestStoreOptions& options = {}) const {
    auto store = open_request_store(file, options);
    EXPECT_TRUE(store) << store.error().message;
    return std::move(*store);
  }
  // By another hand.
  void execute(const std::string& sql) const {
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(file.c_str(), &handle), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(handle);
  }
  bool holds(const std::string& text) const {
    for (const char* more : {"", "-wal"}) {
      std::ostringstream all;
      all << std::ifstream(file.string() + more, std::ios::binary).rdbuf();
      if (all.str().find(text) != std::string::npos) return true;
    }
    return false;
  }
  const fs::path folder = fs::path(WEFT_TEST_TMP) / ("requests_" + std::to_string(::getpid()));
  const fs::path file = folder / "requests.sqlite";
};

StoredRequest request(const std::string& id, size_t tokens = 3) {
  return {.id = id,
          .request = {.run = 7,
                      .request = uint64_t{1} << 61,
                      .tokens = std::vector<int64_t>(tokens, 50'000),
                      .tokens_max = 40,
                      .temperature = 0.5,
                      .top_p = 0.9,
                      .top_k = 5,
                      .seed = UINT64_MAX,
                      .alternatives = 2,
                      .ends = {1, 2}},
          .created = 1700000000,
          .is_chat = true,
          .includes_usage = true,
          .stops = {"the end", std::string("\0x", 2)},
          .once_name = std::string(64, 'n'),
          .once_asked = std::string(64, 'a')};
}
Status write(RequestStore& store, RequestChange change) { return store.write({&change, 1}); }

TEST(RequestStore, WhatIsWrittenIsReadAgain) {
  const Fixture f;
  {
    const auto store = f.open();
    const std::vector<RequestChange> changes{request("a"),          request("b"),
                                             request("c"),          RequestEnded{"b", 99},
                                             RequestForgotten{"c"}, RequestForgotten{"nobody"}};
    ASSERT_TRUE(store->write(changes));
  }
  const auto loaded = f.open()->load();
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->requests.size(), 2u);
  const StoredRequest &one = loaded->requests[0], wanted = request("a");
  EXPECT_EQ(one.id, "a");
  EXPECT_EQ(proto::encode(one.request), proto::encode(wanted.request));
  EXPECT_EQ(one.created, wanted.created);
  EXPECT_TRUE(one.is_chat && one.includes_usage);
  EXPECT_EQ(one.stops, wanted.stops);
  EXPECT_EQ(one.once_name, wanted.once_name);
  EXPECT_EQ(one.once_asked, wanted.once_asked);
  EXPECT_EQ(one.ended_unix_ms, std::nullopt);
  EXPECT_EQ(loaded->requests[1].ended_unix_ms, 99);
  struct stat status {};
  ASSERT_EQ(::stat(f.file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(RequestStore, WhatIsRemovedIsWrittenOver) {
  const Fixture f;
  const auto store = f.open();
  StoredRequest secret = request("a");
  secret.stops = {"what somebody wrote"};
  ASSERT_TRUE(write(*store, secret));
  EXPECT_TRUE(f.holds("what somebody wrote"));
  ASSERT_TRUE(write(*store, RequestForgotten{"a"}));
  ASSERT_TRUE(store->fold());
  EXPECT_FALSE(f.holds("what somebody wrote"));
}

TEST(RequestStore, AFullFileRefusesAndGoesOn) {
  const Fixture f;
  const auto store = f.open({.pages_max = 16});
  ASSERT_TRUE(write(*store, request("a")));
  const Status full = write(*store, request("b", 100'000));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::ResourceExhausted);
  ASSERT_TRUE(write(*store, request("c")));
  EXPECT_EQ(store->load()->requests.size(), 2u);
}

TEST(RequestStore, ADamagedRowIsLeftOut) {
  const Fixture f;
  const std::vector<RequestChange> changes{request("a"), request("b"), request("c"), request("d")};
  ASSERT_TRUE(f.open()->write(changes));
  f.execute("UPDATE requests SET once = 'short' WHERE id = X'64'");
  f.execute("UPDATE requests SET request = X'FFFF' WHERE id = X'61'");
  f.execute("UPDATE requests SET stops = X'FFFFFFFF61' WHERE id = X'62'");
  const auto store = f.open();
  EXPECT_EQ(store->load()->damaged, 3u);
  const auto again = store->load();
  EXPECT_EQ(again->damaged, 0u);
  ASSERT_EQ(again->requests.size(), 1u);
  EXPECT_EQ(again->requests[0].id, "c");
}

TEST(RequestStore, AFileOfBeforeThereWereKeysIsRead) {
  const Fixture f;
  StoredRequest without = request("a");
  without.once_name = without.once_asked = "";
  ASSERT_TRUE(write(*f.open(), without));
  f.execute("ALTER TABLE requests DROP COLUMN once; PRAGMA user_version = 1");
  const auto store = f.open();
  ASSERT_TRUE(write(*store, request("b")));
  const auto loaded = store->load();
  ASSERT_EQ(loaded->requests.size(), 2u);
  EXPECT_EQ(loaded->requests[0].once_name, "");
  EXPECT_EQ(loaded->requests[1].once_name, std::string(64, 'n'));
}

TEST(RequestStore, AnotherProgramsFileIsNotTouched) {
  const Fixture f;
  f.execute("CREATE TABLE mine (a)");
  const auto store = open_request_store(f.file);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, ErrorCode::Corrupted);
}

}  // namespace
}  // namespace weft::broker
