package ondisk.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/**
 * Readers of partitions with at most {@code limit} rows, which are read to their end.
 *
 * <p>Spark stops reading after the last row that it needs. Then it kills the worker, which says so
 * with a traceback, and the next worker imports everything again.
 */
record LimitedReaders(PartitionReaderFactory python, int limit) implements PartitionReaderFactory {

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    return new LimitedReader(python.createReader(partition), limit);
  }

  private static final class LimitedReader implements PartitionReader<InternalRow> {
    private final PartitionReader<InternalRow> python;
    private final int limit;
    private int count;
    private InternalRow last;

    LimitedReader(PartitionReader<InternalRow> python, int limit) {
      this.python = python;
      this.limit = limit;
    }

    @Override
    public boolean next() throws IOException {
      if (last != null || !python.next()) {
        return false;
      }
      count++;
      if (count >= limit) {
        last = python.get().copy();
        while (python.next()) {
          python.get(); // without it the reader stays at its row; joined partitions have more than the limit
        }
      }
      return true;
    }

    @Override
    public InternalRow get() {
      return last == null ? python.get() : last;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return python.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
      python.close();
    }
  }
}
