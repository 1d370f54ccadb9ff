package tiered.delta;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;

/**
 * A Delta log on S3 that several drivers may write at once: a commit is a PUT with `If-None-Match: *`.
 *
 * <p>Delta's own store looks first and writes then, under a lock of one JVM: two drivers overwrite each other's commits.
 * `fs.s3a.performance.flags=create` does not help, plain `create()` never sends the header. Only the builder does.
 */
public final class ConditionalS3LogStore extends S3SingleDriverLogStore {
  private static final String IF_NONE_MATCH = "fs.option.create.conditional.overwrite";

  public ConditionalS3LogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration conf) throws IOException {
    if (overwrite) {
      super.write(path, lines, true, conf);
      return;
    }
    Commit commit = new Commit(path, lines);
    try {
      put(path, commit.bytes(), conf);
    } catch (IOException failure) {
      commit.settle(failure, conf);
    }
  }

  private static void put(Path path, byte[] bytes, Configuration conf) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = path.getFileSystem(conf).createFile(path);
    builder.overwrite(false);
    builder.must(IF_NONE_MATCH, true);
    FSDataOutputStream out = builder.build();
    try {
      out.write(bytes);
    } catch (IOException failure) {
      out.abort(); // close() would upload what was buffered so far
      throw failure;
    }
    out.close();
  }
}
