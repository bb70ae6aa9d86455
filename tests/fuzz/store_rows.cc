// One value of the broker's database is another: its first bytes say which column, and of which type it is.
// The state is loaded as at a start, then everything is as it was.
#include "tests/fuzz/store_rows.h"

#include "base/check.h"
#include "broker/store/columns.h"
#include "broker/store/loader.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "tests/store/history.h"

namespace weft::fuzz {
namespace {

using namespace broker;

class Database {
 public:
  Database() {
    const auto file = folder_.path() / "broker.db";
    {
      auto store = open_sqlite_store(file).value();
      for (const auto& life : test::history())
        for (const auto& write : life) WEFT_CHECK(write(*store).has_value());
      proto::Command command{.run = 2, .plan_version = 1};
      command.sequence = 1;
      const std::vector<Record> run = {RunStarted{2, 1, test::small_plan(2, 1, 3, 0)},
                                       CommandIssued{2, command}};
      WEFT_CHECK(store->append(run).has_value());
    }
    database_ = broker::Database::open(file).value();
    // One row of each table is enough to be read, and so is what it takes to come back to it.
    execute("PRAGMA journal_mode = MEMORY");
    execute("PRAGMA synchronous = OFF");
    execute("DELETE FROM events WHERE sequence > 2");
    for (const StoredColumn& each : kStoredColumns)
      WEFT_CHECK_MSG(
          database_.integer(("SELECT COUNT(*) FROM " + std::string(each.table)).c_str()).value() > 0,
          "a table without rows shows nothing");
  }

  void load_with(const StoredColumn& damaged, uint8_t type, std::span<const std::byte> value) {
    execute("SAVEPOINT whole");
    {
      auto update = database_.prepare(
          ("UPDATE OR IGNORE " + std::string(damaged.table) + " SET " + std::string(damaged.column) + " = ?")
              .c_str());
      WEFT_CHECK(update.has_value());
      Input input(value);
      if (type % 4 == 0)
        update->bind(static_cast<int64_t>(input.number(8)));
      else
        update->bind(value);
      WEFT_CHECK(update->run().has_value());
      const auto state = load_state(database_);
      if (!state) WEFT_CHECK(!state.error().message.empty());
      auto events = database_.prepare("SELECT event FROM events");
      WEFT_CHECK(events.has_value());
      (void)for_each_row(*events, [&](const Statement& row) -> Status {
        return decoded<proto::JobEvent>(database_, row, 0).map([](const auto&) {});
      });
    }
    execute("ROLLBACK TO whole");
    execute("RELEASE whole");
  }

 private:
  void execute(const char* sql) { WEFT_CHECK(database_.execute(sql).has_value()); }

  Folder folder_;
  broker::Database database_;
};

}  // namespace

void store_rows(std::span<const std::byte> bytes) {
  static Database kDatabase;
  Input input(bytes);
  const auto column = input.byte();
  const auto type = input.byte();
  kDatabase.load_with(kStoredColumns[column % kStoredColumns.size()], type, input.rest());
}

}  // namespace weft::fuzz
