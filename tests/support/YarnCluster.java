import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A resource manager and two node managers in this process, until its standard input ends. */
public class YarnCluster {
  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[0]);
    System.setProperty("test.build.data", folder.getPath());
    YarnConfiguration wanted = new YarnConfiguration();
    wanted.set("fs.defaultFS", "file:///");
    wanted.set("yarn.scheduler.capacity.root.queues", "default");
    wanted.set("yarn.scheduler.capacity.root.default.capacity", "100");
    wanted.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    wanted.setInt("yarn.scheduler.minimum-allocation-mb", 128);
    wanted.setInt("yarn.nodemanager.resource.memory-mb", 4096);
    wanted.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    wanted.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    wanted.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100f);
    wanted.setInt("yarn.nodemanager.delete.debug-delay-sec", 3600);
    MiniYARNCluster cluster = new MiniYARNCluster("tidemark", 1, 2, 1, 1);
    cluster.init(wanted);
    cluster.start();
    File aside = new File(folder, "yarn-site.new");
    try (OutputStream file = new FileOutputStream(aside)) {
      new Configuration(cluster.getConfig()).writeXml(file);
    }
    if (!aside.renameTo(new File(folder, "yarn-site.xml"))) {
      throw new IllegalStateException("yarn-site.xml can't be put in place");
    }
    System.in.read();
    cluster.stop();
    System.exit(0);
  }
}
