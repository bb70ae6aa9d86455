#include "broker/store/record_writer.h"

namespace weft::broker {

Status RecordWriter::prepare() {
  WEFT_TRY_STATUS(principals_.prepare(database_));
  WEFT_TRY_STATUS(bans_.prepare(database_));
  WEFT_TRY_STATUS(jobs_.prepare(database_));
  WEFT_TRY_STATUS(outcomes_.prepare(database_));
  return runs_.prepare(database_);
}

}  // namespace weft::broker
