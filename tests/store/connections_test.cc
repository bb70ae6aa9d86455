// Several connections to one database, in one process and in others.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/store/sqlite_store.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;

StoredToken token(char id) {
  return {.id = static_cast<uint64_t>(id),
          .role = proto::Role::Caller,
          .secret_digest = {},
          .created_unix_ms = 1,
          .expires_unix_ms = {},
          .uses_max = {}};
}

// A second connection of this process leaves the first one its locks: else whoever opens and closes the file
// beside them takes itself for the last, and removes the log that they go on writing to.
TEST(SqliteConnections, OfOneProcessSeeWhatAnotherProcessWrites) {
  test::Scratch scratch;
  const fs::path file = scratch.folder() / "broker.sqlite";
  int ask[2], answer[2];
  ASSERT_EQ(::pipe(ask) + ::pipe(answer), 0);
  const pid_t child = ::fork();  // before this process has the file open
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ask[1]);
    for (char id = 0; ::read(ask[0], &id, 1) == 1;) {
      auto store = open_sqlite_store(file);
      const char done = store && (*store)->create_token(token(id)) ? 1 : 0;
      store = nullptr;
      if (::write(answer[1], &done, 1) != 1) break;
    }
    ::_exit(0);
  }
  const auto first = open_sqlite_store(file), second = open_sqlite_store(file);
  ASSERT_TRUE(first && second);
  for (char id = 1; id <= 3; ++id) {
    char done = 0;
    ASSERT_EQ(::write(ask[1], &id, 1) + ::read(answer[0], &done, 1), 2);
    ASSERT_EQ(done, 1);
    for (const auto* store : {&first, &second}) {
      const auto found = (**store)->find_token(static_cast<uint64_t>(id));
      EXPECT_TRUE(found && *found);
    }
    EXPECT_TRUE(fs::exists(file.string() + "-wal"));
  }
  for (const int end : {ask[0], ask[1], answer[0], answer[1]}) ::close(end);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace weft::broker
